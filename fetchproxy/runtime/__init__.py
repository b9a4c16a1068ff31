"""What every part of a process stands on: the event loop, shared work, retries, turns, folders."""
