"""Spreads items over Spark's executors, one task each, and brings back what became of every one.

What fails for a reason of the domain (a store that does not answer, corrupt bytes) fails for its
item alone: the others go on, and the result names it. What a task loses with its worker process is
done again by Spark; so whatever is spread must bear being done twice, also at the same time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fetchproxy.config.schema import LogConfig
from fetchproxy.errors import FetchProxyError, PipelineFailed
from fetchproxy.observability.logs import configure_logging
from fetchproxy.remotelog.session import keep_what_is_loaded

T = TypeVar("T")
R = TypeVar("R")

# Spark's driver keeps about 10 KB for each task; above this, several items share one.
TASKS_MAX = 10_000
_LOOK_S = 0.2  # between two looks at what is done
_NAMED_MAX = 5
# How Spark says that the process died in which a task ran, and not that the task raised.
_SIGNS_OF_LOSS = (
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    "EOFException",
    "Connection reset",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """`what` names the item; `retriable`: the same run may succeed later."""

    what: str
    error: str
    retriable: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.error}{' (may be tried again)' if self.retriable else ''}"


@dataclass(frozen=True, slots=True)
class Progress:
    """`size` is in whatever unit the job counts in, mostly bytes."""

    items_done: int
    items: int
    size_done: int


@dataclass(frozen=True, slots=True)
class Spread(Generic[R]):
    """`results` of the items that were done, in their order."""

    results: tuple[R, ...]
    failures: tuple[Failure, ...]


OnProgress = Callable[[Progress], None]


def quiet(progress: Progress) -> None:
    """Nobody looks on."""


class _Sizes:
    """Spark's AccumulatorParam: item numbers and sizes. A task that ran twice counts once."""

    def zero(self, value: dict[int, int]) -> dict[int, int]:
        return {}

    def addInPlace(self, one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
        one.update(other)
        return one


@dataclass(frozen=True, slots=True)
class _Task(Generic[T, R]):
    """What runs on an executor."""

    work: Callable[[T], R]
    name: Callable[[T], str]
    size: Callable[[R], int]
    done: Any
    log: LogConfig

    def __call__(
        self, numbered: Iterable[tuple[int, T]]
    ) -> Iterator[tuple[int, R | None, Failure | None]]:
        configure_logging(self.log, sys.stderr)  # a worker's own, which Spark keeps
        for number, item in numbered:
            result, failure = attempt(self.work, item, self.name)
            self.done.add({number: 0 if result is None else self.size(result)})
            yield number, result, failure
        keep_what_is_loaded()


def attempt(
    work: Callable[[T], R], item: T, name: Callable[[T], str]
) -> tuple[R | None, Failure | None]:
    """One of both; defects of the program are raised. An OSError is of the executor's own disk."""
    try:
        return work(item), None
    except* (FetchProxyError, OSError) as group:
        errors = list(_leaves(group))
    text = "; ".join(dict.fromkeys(f"{type(e).__name__}: {e}" for e in errors))
    return None, Failure(name(item), text, all(getattr(e, "retriable", True) for e in errors))


def spread(
    spark: Any,
    items: Sequence[T],
    work: Callable[[T], R],
    *,
    label: str,
    name: Callable[[T], str] = str,
    size: Callable[[R], int] = lambda result: 0,
    on_progress: OnProgress = quiet,
    log: LogConfig = LogConfig(),  # noqa: B008 - frozen
) -> Spread[R]:
    """`work` of every item, on executors; it, the items and the results must be picklable.

    Raises PipelineFailed where Spark has lost a task too often (spark.task.maxFailures): what was
    finished until then stays, and a next run goes on from there.
    """
    if not items:
        return Spread((), ())
    context = spark.sparkContext
    done = context.accumulator({}, _Sizes())
    context.setJobGroup(f"fetchproxy-{label}", f"fetchproxy {label}", interruptOnCancel=True)
    task = _Task(work, name, size, done, log)
    tasks = context.parallelize(list(enumerate(items)), min(len(items), TASKS_MAX))
    with _watched(lambda: dict(done.value), len(items), on_progress):
        try:
            rows = tasks.mapPartitions(task).collect()
        except KeyboardInterrupt:
            context.cancelJobGroup(f"fetchproxy-{label}")
            raise
        except Exception as error:
            lost = _loss(error)
            if lost is None:
                raise
            left = [name(item) for i, item in enumerate(items) if i not in done.value]
            raise PipelineFailed(f"{lost}; not finished: {named(left)}") from error
    rows.sort(key=lambda row: row[0])
    return Spread(
        results=tuple(result for _, result, failure in rows if failure is None),
        failures=tuple(failure for _, _, failure in rows if failure is not None),
    )


def named(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _loss(error: Exception) -> str | None:
    """In words, where `error` is Spark's that a task's process died each time; None: it is not."""
    text = str(error)
    if "Traceback (most recent call last)" in text or not any(s in text for s in _SIGNS_OF_LOSS):
        return None
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if "Task " in line and " failed " in line), "")
    return f"a worker process was lost with its task, every time it was tried ({first[:300]})"


class _watched:
    """Calls `on_progress` from a thread of its own while its body runs, and once at its end."""

    def __init__(
        self, look: Callable[[], dict[int, int]], items: int, on_progress: OnProgress
    ) -> None:
        self._look = look
        self._items = items
        self._on_progress = on_progress
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._tell()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._tell()

    def _tell(self) -> None:
        sizes = self._look()
        self._on_progress(Progress(len(sizes), self._items, sum(sizes.values())))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
