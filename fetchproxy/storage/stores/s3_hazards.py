"""Settings of a bucket that harm an archive: lifecycle rules, object lock, versioning. Pure.

A bucket's owner may set them for other objects without thinking of the archive. A rule that
deletes segments loses records, and one that moves them to a cold class makes them unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fetchproxy.storage.stores.object_store import Hazard
from fetchproxy.storage.stores.s3_responses import S3Response

# Error codes: the setting is not set, or the server does not have it.
NOT_SET = frozenset(
    {
        *("NoSuchLifecycleConfiguration", "ObjectLockConfigurationNotFoundError"),
        *("NotImplemented", "MethodNotAllowed", "NoSuchObjectLockConfiguration"),
        "VersioningNotConfigured",  # versitygw without --versioning-dir
    }
)
# Objects in these storage classes have to be restored before they can be read.
_COLD_CLASSES = ("GLACIER", "DEEP_ARCHIVE")


def bucket_hazards(
    bucket: str, prefix: str, lifecycle: S3Response, lock: S3Response, versioning: S3Response
) -> Sequence[Hazard]:
    """Arguments: S3's responses; {}: not set."""
    rules = [rule for rule in lifecycle.get("Rules", ()) if _applies(rule, prefix)]
    hazards = [hazard for rule in rules for hazard in _of_rule(bucket, rule)]
    retention = lock.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention")
    if retention:
        days = retention.get("Days") or 365 * retention.get("Years", 0)
        message = f"object lock keeps each object for {days} days, whatever the archive's retention"
        remedy = f"aws s3api put-object-lock-configuration --bucket {bucket} (no default retention)"
        hazards.append(Hazard(message, remedy, False))
    ends = any("NoncurrentVersionExpiration" in rule for rule in rules)
    if versioning.get("Status") == "Enabled" and not ends:
        message = "the bucket keeps old versions for ever: deleted segments stay, and are billed"
        remedy = (
            f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket} with a "
            "NoncurrentVersionExpiration"
        )
        hazards.append(Hazard(message, remedy, False))
    return hazards


def _applies(rule: Mapping[str, Any], prefix: str) -> bool:
    """Whether the rule is about some object below `prefix`. Objects of archives have no tags."""
    rule_filter = rule.get("Filter", {})
    rule_filter = rule_filter.get("And", rule_filter)
    if rule.get("Status") != "Enabled" or "Tag" in rule_filter or rule_filter.get("Tags"):
        return False
    named = rule_filter.get("Prefix") or rule.get("Prefix") or ""
    return prefix.startswith(named) or named.startswith(prefix)


def _of_rule(bucket: str, rule: Mapping[str, Any]) -> Iterator[Hazard]:
    name = rule.get("ID") or "without an id"
    remedy = (
        f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket}, with a Filter in the "
        f"rule {name} that leaves the archive out"
    )
    ends = rule.get("Expiration", {})
    if "Days" in ends or "Date" in ends:
        when = f"after {ends['Days']} days" if "Days" in ends else f"at {ends['Date']}"
        yield Hazard(f"the lifecycle rule {name} deletes objects {when}", remedy, True)
    for move in rule.get("Transitions", ()):
        if move.get("StorageClass") in _COLD_CLASSES:
            message = f"the lifecycle rule {name} moves objects to {move['StorageClass']}"
            yield Hazard(f"{message}, which cannot be read at once", remedy, True)
