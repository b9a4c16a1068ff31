"""RemoteStorageManager over object stores, and what else lies in the store."""
