"""Where clients connect: the relay of the tail, and where a fetch is caught and split."""
