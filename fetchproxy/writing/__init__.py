"""The write side of the archive: RemoteLogManager, copies, leadership, deletion."""
