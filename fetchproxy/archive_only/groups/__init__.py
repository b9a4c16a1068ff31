"""Consumer groups on one node: who reads what (in memory), how far they are (in a file)."""
