"""What a DuckDB connection may reach: nothing but its file."""

from __future__ import annotations

from typing import Final

SETTINGS: Final = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # or a query reads variables of this program as tables
    "temp_directory": "",  # nothing is spilled to a disk
    "memory_limit": "512MB",
    "threads": "2",
    "lock_configuration": "true",
}
