"""What a new cluster needs of the old one besides records: read, kept in the archive, compared."""
