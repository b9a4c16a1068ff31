"""What the archive holds, how certain that is, and the states a segment goes through."""
