from __future__ import annotations

from fetchproxy.observability.ages import Activity, LastSuccesses
from fetchproxy.observability.metrics import LAST_SUCCESS_AGE_SECONDS, series_of


def age(activity: Activity) -> float:
    [sample_value] = [
        sample.value
        for family in LAST_SUCCESS_AGE_SECONDS.collect()
        for sample in family.samples
        if sample.labels["activity"] == activity
    ]
    return sample_value


def test_an_age_grows_until_the_next_success() -> None:
    LAST_SUCCESS_AGE_SECONDS.clear()
    successes = LastSuccesses()
    successes.note(Activity.COPY, 100.0)
    successes.publish(130.0)
    assert age(Activity.COPY) == 30.0
    successes.publish(190.0)
    assert age(Activity.COPY) == 90.0
    successes.note(Activity.COPY, 195.0)
    successes.note(Activity.COPY, 40.0)  # an older partition's, seen later
    successes.publish(200.0)
    assert age(Activity.COPY) == 5.0


def test_what_never_succeeded_has_no_age() -> None:
    LAST_SUCCESS_AGE_SECONDS.clear()
    successes = LastSuccesses()
    successes.note(Activity.METADATA_WRITE, 1.0)
    successes.publish(2.0)
    assert list(series_of(LAST_SUCCESS_AGE_SECONDS)) == [("metadata_write",)]
