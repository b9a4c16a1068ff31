"""Is the archive right? `verify`, `repair`, `restore`, `resolve`, each for whoever runs it."""
