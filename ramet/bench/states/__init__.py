"""States that grow step by step."""
