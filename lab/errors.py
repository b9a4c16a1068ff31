"""The lab's errors: a part that cannot be set up, and a part that did not start."""

from __future__ import annotations


class PartMissing(Exception):
    """`what` cannot be set up on this machine. The message says why and how a user can get it."""

    def __init__(self, what: str, why: str, how: str) -> None:
        super().__init__(f"{what} is missing: {why}. {how}")
        self.what = what
        self.why = why
        self.how = how


class PartFailed(Exception):
    """A part was started and did not come up; the message ends with the tail of its log."""
