"""Puts the folders on the path whose fakes these tests share: virtual time, brokers, topics."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("simulation", "cluster", "metadata"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))
