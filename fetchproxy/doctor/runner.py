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
from fetchproxy.doctor.brokers import BROKER_LOOKS
from fetchproxy.doctor.catalogue import CHECKS, PAGE, Category, CheckMeaning, Severity
from fetchproxy.doctor.certificates import CERTIFICATE_LOOKS
from fetchproxy.doctor.change import CHANGE_LOOKS, Change, examine_change
from fetchproxy.doctor.listeners import LISTENER_LOOKS
from fetchproxy.doctor.resources import RESOURCE_LOOKS
from fetchproxy.doctor.scene import DoesNotApply, Finding, Look, NotChecked, Passed, Scene
from fetchproxy.doctor.settings import SETTINGS_LOOKS
from fetchproxy.doctor.store import STORE_LOOKS
from fetchproxy.doctor.topics import TOPIC_LOOKS
from fetchproxy.errors import ConfigError, FetchProxyError, system_error_in_words

# Seconds. A broker has ten to answer by default, and a store twenty; what takes longer is broken.
CHECK_MAX_S = 20.0
LOOKS: Mapping[str, Look] = {
    **SETTINGS_LOOKS,
    **BROKER_LOOKS,
    **TOPIC_LOOKS,
    **STORE_LOOKS,
    **LISTENER_LOOKS,
    **CERTIFICATE_LOOKS,
    **RESOURCE_LOOKS,
    **CHANGE_LOOKS,
}
_SETTINGS_CHECK = "FP0001"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A finding with all its words: safe for a terminal, and without secrets."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`note`: what a check that passed saw, or why it was not made (`made` False). `applies` False:
    these settings do not need it.
    """

    id: str
    troubles: Sequence[Trouble] = ()
    note: str = ""
    made: bool = True
    applies: bool = True

    @property
    def meaning(self) -> CheckMeaning:
        return CHECKS[self.id]

    @property
    def is_fatal(self) -> bool:
        return bool(self.troubles) and self.meaning.severity is Severity.FATAL

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
        return int(any(result.troubles for result in self.results))


async def examine(
    scene: Scene, skip: Collection[str] = (), check_max_s: float = CHECK_MAX_S
) -> Examination:
    """`skip`: ids, and names of categories, that are left out."""
    asyncio.get_running_loop().set_default_executor(_LeftBehind())
    try:
        async with asyncio.TaskGroup() as tasks:
            categories = [
                tasks.create_task(_examine_category(scene, category, skip, check_max_s))
                for category in Category
            ]
            changes = tasks.create_task(examine_change(scene, check_max_s))
    finally:
        await scene.close()
    results = [result for task in categories for result in task.result()]
    return Examination(results, changes.result())


def unusable(error: ConfigError) -> Examination:
    """The settings cannot be used, so nothing else can be examined."""
    words = {word: word.upper() for word in ("bootstrap", "file")}
    remedy = CHECKS[_SETTINGS_CHECK].remedy.format_map(words)
    troubles = [Trouble(safe(fault), remedy) for fault in error.faults]
    return Examination([CheckResult(_SETTINGS_CHECK, troubles)])


def safe(text: str) -> str:
    """`text` on one line, without secrets and harmless to a terminal."""
    return harmless(mask_text(" ".join(text.split())))


class _LeftBehind(ThreadPoolExecutor):
    """Threads that hang in a disk or a resolver do not hold up the end of the command."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


async def _examine_category(
    scene: Scene, category: Category, skip: Collection[str], check_max_s: float
) -> list[CheckResult]:
    results: list[CheckResult] = []
    if category in skip:
        return results
    for id, meaning in CHECKS.items():
        if meaning.category is not category or id in skip:
            continue
        result = await _examine_one(scene, id, meaning, check_max_s)
        results.append(result)
        if result.is_fatal:
            break
    return results


async def _examine_one(
    scene: Scene, id: str, meaning: CheckMeaning, check_max_s: float
) -> CheckResult:
    try:
        async with asyncio.timeout(check_max_s) as limit:
            findings = await LOOKS[id](scene)
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
    return CheckResult(id, list(_troubles(scene, meaning, findings)))


def _troubles(
    scene: Scene, meaning: CheckMeaning, findings: Iterable[Finding]
) -> Iterable[Trouble]:
    words = _Words(scene.words())
    for finding in findings:
        remedy = meaning.remedy.format_map(_Words({**words, **finding.words}))
        yield Trouble(safe(finding.reason), safe(remedy))


class _Words(dict[str, object]):
    """A word that a finding does not have stays a place to fill in."""

    def __missing__(self, word: str) -> str:
        return word.upper()
