"""Measures what fetchproxy costs, side by side with the alternatives that a user could run.

Each module starts the servers it compares through `lab/`. Ratios come first, since machines differ.
"""
