"""Runs the checks: categories at once, the checks of a category one after the other.

A fatal finding ends its category, because what follows would fail for the same reason. Each check
has a time limit. Errors of the domain and of the system are findings in their own words. Any other
error is a defect of fetchproxy and goes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fetchproxy.config.values import harmless, mask_text
from fetchproxy.doctor.brokers import BROKER_CHECKS
from fetchproxy.doctor.catalogue import CHECKS, PAGE, Category, CheckMeaning, Severity
from fetchproxy.doctor.certificates import CERTIFICATE_CHECKS
from fetchproxy.doctor.change import CHANGE_CHECKS, Change, examine_change
from fetchproxy.doctor.installation import (
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    NotChecked,
    Passed,
)
from fetchproxy.doctor.listeners import LISTENER_CHECKS
from fetchproxy.doctor.resources import RESOURCE_CHECKS
from fetchproxy.doctor.settings import SETTINGS_CHECKS
from fetchproxy.doctor.store import STORE_CHECKS
from fetchproxy.doctor.topics import TOPIC_CHECKS
from fetchproxy.errors import ConfigError, FetchProxyError, system_error_in_words

# Seconds. A broker has ten to answer by default, and a store twenty; what takes longer is broken.
CHECK_MAX_S = 20.0
CHECK_FUNCTIONS: Mapping[str, CheckFunction] = {
    **SETTINGS_CHECKS,
    **BROKER_CHECKS,
    **TOPIC_CHECKS,
    **STORE_CHECKS,
    **LISTENER_CHECKS,
    **CERTIFICATE_CHECKS,
    **RESOURCE_CHECKS,
    **CHANGE_CHECKS,
}
_SETTINGS_CHECK = "FP0001"


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding with all its words: safe for a terminal, and without secrets."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`note`: what a check that passed saw, or why it was not made (`made` False). `applies` False:
    these settings do not need it.
    """

    id: str
    findings: Sequence[ShownFinding] = ()
    note: str = ""
    made: bool = True
    applies: bool = True

    @property
    def meaning(self) -> CheckMeaning:
        return CHECKS[self.id]

    @property
    def is_fatal(self) -> bool:
        return bool(self.findings) and self.meaning.severity is Severity.FATAL

    @property
    def heading(self) -> str:
        return f"{PAGE}#{self.id.lower()}"


@dataclass(frozen=True, slots=True)
class Examination:
    results: Sequence[CheckResult]
    change: Change | None = None

    @property
    def exit_code(self) -> int:
        """0: nothing was found; 1: warnings; 2: something fatal."""
        if any(result.is_fatal for result in self.results):
            return 2
        return int(any(result.findings for result in self.results))


async def examine(
    installation: Installation, skip: Collection[str] = (), check_max_s: float = CHECK_MAX_S
) -> Examination:
    """`skip`: ids, and names of categories, that are left out."""
    asyncio.get_running_loop().set_default_executor(_AbandonableThreads())
    try:
        async with asyncio.TaskGroup() as tasks:
            categories = [
                tasks.create_task(_examine_category(installation, category, skip, check_max_s))
                for category in Category
            ]
            changes = tasks.create_task(examine_change(installation, check_max_s))
    finally:
        await installation.close()
    results = [result for task in categories for result in task.result()]
    return Examination(results, changes.result())


def unusable(error: ConfigError) -> Examination:
    """The settings cannot be used, so nothing else can be examined."""
    words = {word: word.upper() for word in ("bootstrap", "file")}
    remedy = CHECKS[_SETTINGS_CHECK].remedy.format_map(words)
    findings = [ShownFinding(safe(fault), remedy) for fault in error.faults]
    return Examination([CheckResult(_SETTINGS_CHECK, findings)])


def safe(text: str) -> str:
    """`text` on one line, without secrets and harmless to a terminal."""
    return harmless(mask_text(" ".join(text.split())))


class _AbandonableThreads(ThreadPoolExecutor):
    """Threads that hang in a disk or a resolver do not hold up the end of the command."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


async def _examine_category(
    installation: Installation, category: Category, skip: Collection[str], check_max_s: float
) -> list[CheckResult]:
    results: list[CheckResult] = []
    if category in skip:
        return results
    for id, meaning in CHECKS.items():
        if meaning.category is not category or id in skip:
            continue
        result = await _examine_one(installation, id, meaning, check_max_s)
        results.append(result)
        if result.is_fatal:
            break
    return results


async def _examine_one(
    installation: Installation, id: str, meaning: CheckMeaning, check_max_s: float
) -> CheckResult:
    try:
        async with asyncio.timeout(check_max_s) as limit:
            findings = await CHECK_FUNCTIONS[id](installation)
    except NotChecked as why:
        applies = not isinstance(why, DoesNotApply)
        return CheckResult(id, note=safe(str(why)), made=False, applies=applies)
    except TimeoutError as error:
        within = f"no response within {check_max_s:g} s"
        findings = [Finding(within if limit.expired() else f"no response in time: {error}")]
    except FetchProxyError as error:
        findings = [Finding(str(error), getattr(error, "words", {}))]
    except OSError as error:
        findings = [Finding(system_error_in_words(error))]
    if isinstance(findings, Passed):
        return CheckResult(id, note=safe(findings.note))
    return CheckResult(id, list(_shown_findings(installation, meaning, findings)))


def _shown_findings(
    installation: Installation, meaning: CheckMeaning, findings: Iterable[Finding]
) -> Iterable[ShownFinding]:
    words = _RemedyWords(installation.words())
    for finding in findings:
        remedy = meaning.remedy.format_map(_RemedyWords({**words, **finding.words}))
        yield ShownFinding(safe(finding.reason), safe(remedy))


class _RemedyWords(dict[str, object]):
    """A word that a finding does not have stays a place to fill in."""

    def __missing__(self, word: str) -> str:
        return word.upper()
