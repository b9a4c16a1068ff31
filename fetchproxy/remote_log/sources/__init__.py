"""Where segments to copy come from: gathered from a broker by Fetch, or its own rolled files."""
