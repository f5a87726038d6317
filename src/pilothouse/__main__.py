"""`python -m pilothouse`."""

from .cli.main import main

main()
