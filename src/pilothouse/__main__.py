"""The console script, and `python -m pilothouse`."""

import sys


def main() -> None:
    """Runs the command. What it needs is loaded in here, so that Ctrl-C meanwhile is no traceback either."""
    try:
        from .cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
