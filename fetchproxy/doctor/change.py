"""What a change of the settings would do, in thought, against the live cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fetchproxy.config.load import Loaded, all_keys
from fetchproxy.config.memory_plan import memory_parts
from fetchproxy.config.reloading import compare_settings
from fetchproxy.config.schema import Config
from fetchproxy.config.values import MASK, mask_text
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    NotChecked,
    from_brokers,
)
from fetchproxy.doctor.topics import archived_after_ms, int_setting
from fetchproxy.errors import FetchProxyError
from fetchproxy.storage.stores.registry import same_place, without_secrets
from fetchproxy.writing.deletion.retention import effective_retention
from fetchproxy.writing.discovery import matching_topics

_OF_THE_MANAGER = ("manager", "topic_name", "topic_partitions")


@dataclass(frozen=True, slots=True)
class Change:
    """`settings`: (key, now, then). `waiting`: keys that need a restart; the others are taken at
    SIGHUP. `gained`, `lost`: topics that are archived; None: the brokers
    do not tell. `margin_ms`: by gained topic, how long the brokers keep a record after it must have
    been archived; None: for ever. `memory_bytes`: (now, then).
    """

    settings: Sequence[tuple[str, str, str]]
    memory_bytes: tuple[int, int]
    waiting: Sequence[str] = ()
    gained: Sequence[str] | None = None
    lost: Sequence[str] | None = None
    margin_ms: Mapping[str, int | None] = field(default_factory=dict)


def changed_settings(now: Loaded, new: Loaded) -> list[tuple[str, str, str]]:
    """Without secrets, which count as changed if they are."""
    changes: list[tuple[str, str, str]] = []
    for key in all_keys().values():
        before, after = now.value_of(key), new.value_of(key)
        if before == after:
            continue
        texts = [_value_text(key.as_text(value), key.is_secret) for value in (before, after)]
        changes.append((key.dotted, texts[0], texts[1]))
    return changes


def _value_text(text: str, is_secret: bool) -> str:
    return MASK if is_secret else without_secrets(mask_text(text))


async def examine_change(installation: Installation, most_s: float) -> Change | None:
    """Asks the brokers for `most_s` at most. None: no other settings are in force."""
    if installation.present is None:
        return None
    now, new = installation.present.config, installation.config
    change = Change(
        changed_settings(installation.present, installation.loaded),
        (sum(memory_parts(now).values()), sum(memory_parts(new).values())),
        compare_settings(now, installation.loaded).waiting,
    )
    try:
        async with asyncio.timeout(most_s):
            before, after = await _topics(installation, now), await _topics(installation, new)
            gained_topics = sorted(after - before)
            margins = {topic: await _margin_ms(installation, topic) for topic in gained_topics}
    except (NotChecked, FetchProxyError, TimeoutError):
        return change  # the checks of the brokers say why
    removed_topics = sorted(before - after)
    return replace(change, gained=gained_topics, lost=removed_topics, margin_ms=margins)


async def _margin_ms(installation: Installation, topic: str) -> int | None:
    settings = await from_brokers((await installation.cluster()).topic_config(topic))
    kept_ms = int_setting(settings, "retention.ms", -1)
    return None if kept_ms < 0 else kept_ms - archived_after_ms(installation.config.archive)


async def _topics(installation: Installation, config: Config) -> set[str]:
    """The topics that these settings archive, of those that the cluster has now."""
    if config.archive.topics is None:
        return set()
    topics = await from_brokers((await installation.cluster()).topics())
    matching = matching_topics(config.archive, topics, config.metadata.topic_name)
    return {topic.name for topic in matching}


def _present(installation: Installation) -> Config:
    if installation.present is None:
        raise DoesNotApply("no other settings are in force")
    return installation.present.config


async def _keeps_its_topics(installation: Installation) -> Sequence[Finding]:
    removed_topics = await _topics(installation, _present(installation)) - await _topics(
        installation, installation.config
    )
    return (
        [Finding(f"no longer archived: {', '.join(sorted(removed_topics))}")]
        if removed_topics
        else NOTHING
    )


async def _stays_where_it_is(installation: Installation) -> Sequence[Finding]:
    now, new = _present(installation).store.url, installation.config.store.url
    if now is None or new is None or same_place(now, new):
        return NOTHING
    return [Finding(f"store.url: {without_secrets(now)} becomes {without_secrets(new)}")]


async def _keeps_its_manager(installation: Installation) -> Sequence[Finding]:
    now, new = _present(installation).metadata, installation.config.metadata
    if now.manager == new.manager == "store":
        return NOTHING
    return [
        Finding(f"metadata.{name}: {getattr(now, name)} becomes {getattr(new, name)}")
        for name in _OF_THE_MANAGER
        if getattr(now, name) != getattr(new, name)
    ]


async def _deletes_no_more(installation: Installation) -> Sequence[Finding]:
    now, new = _present(installation), installation.config
    topics = await _topics(installation, now) & await _topics(installation, new)
    shorter: dict[tuple[str, int, int], list[str]] = {}
    for topic in sorted(topics):
        before = effective_retention(now.archive, topic, None)
        after = effective_retention(new.archive, topic, None)
        for what, retention_kept, keeps in (
            ("ms", before.remote_ms, after.remote_ms),
            ("bytes", before.remote_bytes, after.remote_bytes),
        ):
            if keeps >= 0 and not 0 <= retention_kept <= keeps:
                shorter.setdefault((what, retention_kept, keeps), []).append(topic)
    return [
        Finding(
            f"remote_log_retention_{what}: {retention_kept} becomes {keeps} for {', '.join(names)}"
        )
        for (what, retention_kept, keeps), names in shorter.items()
    ]


CHANGE_CHECKS: Mapping[str, CheckFunction] = {
    "FP0601": _keeps_its_topics,
    "FP0602": _stays_where_it_is,
    "FP0603": _keeps_its_manager,
    "FP0604": _deletes_no_more,
}
