"""Which settings of a bucket harm an archive below a prefix."""

from __future__ import annotations

from typing import Any

import pytest

from fetchproxy.storage.stores.s3_hazards import bucket_hazards

PREFIX = "team/archive/"
EXPIRES = {"Expiration": {"Days": 30}}
COLD = {"Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}


def rule(**changes: Any) -> dict[str, Any]:
    return {"Rules": [{"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, **changes}]}


@pytest.mark.parametrize(
    ("lifecycle", "says"),
    [
        (rule(**EXPIRES), "the lifecycle rule r deletes objects after 30 days"),
        (rule(**EXPIRES, Filter={"Prefix": "team/"}), "deletes objects"),
        (rule(**EXPIRES, Filter={"Prefix": "team/archive/orders"}), "deletes objects"),
        (rule(**EXPIRES, Filter={"And": {"Prefix": "team/"}}), "deletes objects"),
        ({"Rules": [{"Status": "Enabled", "Prefix": "", **EXPIRES}]}, "without an id"),
        (rule(**COLD), "moves objects to GLACIER"),
    ],
)
def test_a_rule_that_loses_segments(lifecycle: dict[str, Any], says: str) -> None:
    [hazard] = bucket_hazards("b", PREFIX, lifecycle, {}, {})
    assert hazard.loses
    assert says in hazard.what
    assert "--bucket b" in hazard.remedy


@pytest.mark.parametrize(
    "lifecycle",
    [
        {},
        rule(**EXPIRES, Status="Disabled"),
        rule(**EXPIRES, Filter={"Prefix": "other/"}),
        rule(**EXPIRES, Filter={"Tag": {"Key": "k", "Value": "v"}}),
        rule(**EXPIRES, Filter={"And": {"Prefix": "", "Tags": [{"Key": "k", "Value": "v"}]}}),
        rule(Transitions=[{"Days": 1, "StorageClass": "STANDARD_IA"}]),
        rule(Expiration={"ExpiredObjectDeleteMarker": True}),
        rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": 7}),
    ],
)
def test_a_rule_that_harms_nothing(lifecycle: dict[str, Any]) -> None:
    assert bucket_hazards("b", PREFIX, lifecycle, {}, {}) == []


def test_what_keeps_deleted_segments() -> None:
    lock = {"ObjectLockConfiguration": {"Rule": {"DefaultRetention": {"Days": 90}}}}
    locked, versioned = bucket_hazards("b", PREFIX, {}, lock, {"Status": "Enabled"})
    assert "90 days" in locked.what
    assert "old versions" in versioned.what
    assert not locked.loses
    assert not versioned.loses
    ends = rule(NoncurrentVersionExpiration={"NoncurrentDays": 7})
    assert bucket_hazards("b", PREFIX, ends, {}, {"Status": "Enabled"}) == []
