"""The read side: where a fetch of archived data waits, and how its bytes are read."""
