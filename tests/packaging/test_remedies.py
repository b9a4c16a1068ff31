"""Each condition has a remedy that a test has tried: it causes the condition and ends it so."""

from __future__ import annotations

import pytest
from marked_tests import marked

from fetchproxy.observability.health import Kind, Level

TRIED = marked("remedy")


@pytest.mark.parametrize("kind", Kind)
def test_a_test_causes_the_condition_and_does_what_its_remedy_says(kind: Kind) -> None:
    """Mark that test: `@pytest.mark.remedy("kind")`."""
    if kind.meaning.level is not Level.ON_RECORD:  # nobody has to act
        assert kind in TRIED


def test_marks_name_real_kinds() -> None:
    assert not TRIED - set(Kind)
