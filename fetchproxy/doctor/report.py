"""An examination as text for people and as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from fetchproxy.config.schema import MiB
from fetchproxy.doctor.change import Change
from fetchproxy.doctor.runner import CheckResult, Examination

_SIGNS = {"ok": "√", "warning": "‼", "fatal": "×", "not checked": "-"}
_PLAIN_SIGNS = {"ok": "ok", "warning": "!!", "fatal": "XX", "not checked": "--"}
_NAMED_MAX = 20


def state(result: CheckResult) -> str:
    if not result.applies:
        return "does not apply"
    if not result.made:
        return "not checked"
    return result.meaning.severity.value if result.findings else "ok"


def examination_text(examination: Examination, *, plain: bool = False) -> str:
    """Without the checks that do not apply."""
    lines: list[str] = []
    signs = _PLAIN_SIGNS if plain else _SIGNS
    results = [result for result in examination.results if result.applies]
    for category, members in groupby(results, lambda one: one.meaning.category):
        # An underline of its own length, so that categories are found by eye, as linkerd does.
        lines += ["", category.value, "-" * len(category.value)]
        for result in members:
            lines += _check_lines(result, signs[state(result)])
    if examination.change is not None:
        lines += [
            "",
            "what the change does",
            "--------------------",
            *_change_lines(examination.change),
        ]
    return "\n".join([*lines[1:], "", _summary(examination)]) + "\n"


def _check_lines(result: CheckResult, sign: str) -> Iterator[str]:
    note = f" ({result.note})" if result.note else ""
    yield f"{sign} {result.id} {result.meaning.holds}{note}"
    for finding in result.findings:
        yield f"    {finding.reason}"
        yield f"    -> {finding.remedy}"
    if result.findings:
        yield f"    see {result.heading}"


def _change_lines(change: Change) -> Iterator[str]:
    for key, now, new in change.settings:
        yield f"{key}: {now} becomes {new}"
    if not change.settings:
        yield "no setting changes"
    elif change.waiting:
        yield f"needs a restart: {', '.join(change.waiting)}"
    else:
        yield "SIGHUP is enough: no restart is needed"
    now_bytes, then_bytes = change.memory_bytes
    yield f"memory plan: {now_bytes / MiB:.0f} MiB becomes {then_bytes / MiB:.0f} MiB"
    if change.gained is None or change.lost is None:
        yield "topics: not known, because the brokers did not list them"
        return
    yield f"topics gained: {_named(change.gained)}"
    yield f"topics lost: {_named(change.lost)}"
    for topic, margin_ms in list(change.margin_ms.items())[:_NAMED_MAX]:
        kept_for = (
            "for ever" if margin_ms is None else f"{margin_ms // 1000} s longer than that takes"
        )
        yield f"{topic}: the brokers keep what is to be archived {kept_for}"


def _named(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _NAMED_MAX} more" if len(topics) > _NAMED_MAX else ""
    return ", ".join(topics[:_NAMED_MAX]) + more if topics else "none"


def _summary(examination: Examination) -> str:
    states = [state(result) for result in examination.results]
    words = [f"{states.count(one)} {one}" for one in _SIGNS if one in states]
    return f"{', '.join(words)}: exit code {examination.exit_code}"


def examination_json(examination: Examination) -> str:
    document: dict[str, object] = {
        "exit_code": examination.exit_code,
        "checks": [
            {
                "id": result.id,
                "category": result.meaning.category.value,
                "check": result.meaning.holds,
                "state": state(result),
                "note": result.note,
                "findings": [
                    {"reason": finding.reason, "remedy": finding.remedy, "see": result.heading}
                    for finding in result.findings
                ],
            }
            for result in examination.results
        ],
    }
    if (change := examination.change) is not None:
        document["change"] = {
            "settings": [
                {"key": key, "now": now, "then": new} for key, now, new in change.settings
            ],
            "needs_restart": list(change.waiting),
            "memory_bytes": dict(zip(("now", "then"), change.memory_bytes, strict=True)),
            "topics_gained": change.gained,
            "topics_lost": change.lost,
            "margin_ms": change.margin_ms,
        }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
