"""RemoteStorage: RemoteStorageManager and the other parts of an archive, over object stores."""
