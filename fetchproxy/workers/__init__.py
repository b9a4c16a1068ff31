"""`serve --workers N`: several processes that serve the same clients on the same ports."""
