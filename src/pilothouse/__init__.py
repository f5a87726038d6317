"""Pilothouse, an agent controller for Python."""

from ._version import __version__ as __version__
