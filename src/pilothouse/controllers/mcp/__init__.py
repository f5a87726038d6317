"""The tools of one MCP server."""
