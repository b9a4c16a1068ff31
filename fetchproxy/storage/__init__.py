"""Bytes in a store: the interface, its backends, and where each object lies."""
