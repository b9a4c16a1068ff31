"""`python -m benchmarks`: every benchmark, one after the other. Takes the options of each."""

from __future__ import annotations

import sys

from benchmarks import tail

if __name__ == "__main__":
    sys.exit(tail.main())
