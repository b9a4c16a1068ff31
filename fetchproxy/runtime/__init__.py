"""The base of every part of a process: the event loop, shared work, retries, turns, folders."""
