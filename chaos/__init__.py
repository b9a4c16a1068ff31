"""Breaks everything at random, by seed, and checks that no record is lost: `make chaos`."""
