"""What fetchproxy costs, measured against what a user would run instead, in one run side by side.

Each module sets up what it compares through `lab/`. Ratios come first, since machines differ.
"""
