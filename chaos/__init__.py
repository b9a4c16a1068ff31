"""Everything is broken at random, by seed, and every record has to be there: `make chaos`."""
