"""The files that say what is where in a segment: offsets, aborted transactions, epochs."""
