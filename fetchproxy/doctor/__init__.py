"""`fetchproxy doctor`: checks an installation, and says which command mends what it finds."""
