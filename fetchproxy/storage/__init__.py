"""RemoteStorageManager over object stores, and the store's other objects."""
