"""What Pilothouse costs beside the bare asyncio floor, measured in one run: `./dev bench`."""
