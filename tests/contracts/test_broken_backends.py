"""The contract refuses each defective backend by a test of that defect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

REFUSED_BY = {
    "PutInTwoSteps": "test_a_reader_sees_the_old_or_the_new_content",
    "OnePage": "test_more_keys_than_a_page_holds",
    "RangeOneTooLong": "test_ranges",
    "EmptyBehindTheEnd": "test_a_range_past_the_end_is_an_error",
    "DeleteOfMissingRaises": "test_delete",
    "ForeignErrors": "test_an_absent_key_is_not_found",
    "PutNewReplaces": "test_what_is_new_replaces_nothing",
    "LooksBeforeItPuts": "test_of_many_that_make_it_at_once_one_does",
    "ListsUnsorted": "test_a_listing_is_in_the_order_of_keys",
    "StartsAtTheKey": "test_a_listing_starts_after_a_key",
    "FoldersSortedByName": "test_folders",
    "OneVersion": "test_a_second_put_replaces",
    "ReadsHoweverLarge": "test_what_is_larger_than_wanted_is_not_read",
    "TakesAnyKey": "test_an_illegal_key_is_a_bug_of_the_caller",
    "FileOfTheCaller": "test_a_settled_file_may_lose_its_name",
    "GoesOnWhenClosed": "test_close_is_idempotent_and_final",
}


@pytest.fixture(scope="module")
def failed() -> set[tuple[str, str]]:
    """The failed (backend, test) pairs, of the sound one's tests and of those that must fail."""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "protocol", HERE)))
    options = ["-q", "--tb=no", "-rf", "-p", "no:cacheprovider", "--noconftest"]
    pairs = (f"({backend} and {test})" for backend, test in REFUSED_BY.items())
    options += ["-k", " or ".join(["Sound", *pairs])]
    options += ["-c", str(ROOT / "pyproject.toml"), str(HERE / "broken_backends.py")]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stdout[-3000:] + result.stderr
    failures = re.findall(r"^FAILED .*::(\w+)\[(.*?)\]", result.stdout, re.MULTILINE)
    known = {*REFUSED_BY, "Sound"}
    return {(part, test) for test, words in failures for part in words.split("-") if part in known}


@pytest.mark.parametrize(("backend", "test"), REFUSED_BY.items())
def test_a_wrong_backend_is_refused(failed: set[tuple[str, str]], backend: str, test: str) -> None:
    assert (backend, test) in failed


def test_a_sound_one_is_not(failed: set[tuple[str, str]]) -> None:
    assert "Sound" not in {backend for backend, _ in failed}


def test_each_backend_is_asked_about() -> None:
    text = (HERE / "broken_backends.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^class (\w+)\(MemoryObjectStore\)", text, re.MULTILINE)) == {
        *REFUSED_BY,
        "Sound",
    }
