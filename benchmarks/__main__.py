"""`python -m benchmarks`: every benchmark, one after the other. Takes the options of `tail`."""

from __future__ import annotations

import sys

from benchmarks import metadata, tail

if __name__ == "__main__":
    quick = ["--quick"] if "--quick" in sys.argv else []
    sys.exit(metadata.main(quick) or tail.main())
