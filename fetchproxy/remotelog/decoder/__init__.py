"""Decodes stored bytes to Arrow columns with compiled code."""
