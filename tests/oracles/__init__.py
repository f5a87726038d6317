"""Second opinions: what the specification says, written down without looking at how it was built."""
