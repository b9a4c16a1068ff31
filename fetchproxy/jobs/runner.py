"""Runs a job's work in this process or on Spark's executors, with the same function.

An error (a store that does not answer, corrupt bytes, a defect) fails only its item: the other
items continue, and the result names the failed one. Spark repeats a task that was lost with its
worker process. So the work must allow being done twice, even at the same time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Generic, TypeVar

import structlog

from fetchproxy.archive import in_loop
from fetchproxy.config.schema import LogConfig
from fetchproxy.errors import FetchProxyError, PipelineFailed, RemoteStorageError, leaves
from fetchproxy.observability.health import Condition
from fetchproxy.observability.logs import configure_logging
from fetchproxy.remotelog.session import freeze_loaded_modules

log = structlog.get_logger(__name__)

Opened = TypeVar("Opened")
T = TypeVar("T")
R = TypeVar("R")

# Spark's driver keeps about 10 KB for each task; above this, several items share one.
TASKS_MAX = 10_000
# Items that one process works on at once. Each waits for the store most of its time.
AT_ONCE_HERE = 4
# If so many items fail one after the other for a reason that may pass, the store is away: the
# others are not begun, because each would wait for its tries.
ITEMS_FAILED_IN_A_ROW_MAX = 20
_REPORT_INTERVAL_S = 0.2  # between two progress reports
_NAMED_MAX = 5
# Spark's messages if a task's process died, rather than the task raising an error.
_SIGNS_OF_LOSS = (
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    "EOFException",
    "Connection reset",
)
# Called by the work on an item: the size done and the total size.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """How an item ended that has no result. `retriable`: the same run may succeed later."""

    name: str
    error: str
    retriable: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.error}{' (may be tried again)' if self.retriable else ''}"


def not_listed(unlisted: Mapping[str, RemoteStorageError]) -> tuple[ItemFailure, ...]:
    """`unlisted`: by topic, why its partitions are not known. So none of them had its turn."""
    return tuple(
        ItemFailure(topic, str(error), error.retriable) for topic, error in sorted(unlisted.items())
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """`size_done`: in the job's unit, mostly bytes. `in_progress`: the finished share of items in
    progress, in items.
    """

    items_done: int
    items: int
    size_done: int
    in_progress: float = 0.0


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """`results`: the results of the items that succeeded, in the order of the items. `frame`: the
    same results as a DataFrame with the job's schema, if it has one.
    """

    results: tuple[R, ...]
    failures: tuple[ItemFailure, ...]
    frame: Any = None


def not_done(conditions: Iterable[Condition]) -> tuple[ItemFailure, ...]:
    """A failure for each object that could not be processed, although its item is done."""
    return tuple(
        ItemFailure(f"{condition.subject}: {condition.object_key}", condition.what, True)
        for condition in conditions
    )


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Work(Generic[T, R]):
    """The work on an item, if it uses a core by itself. It must be picklable."""

    label: str
    run: Callable[[T], R]
    name: Callable[[T], str] = str
    size: Callable[[R], int] = lambda result: 0

    def __call__(self, item: T) -> R:
        return self.run(item)


@dataclass(frozen=True, slots=True)
class StoreWork(Generic[Opened, T, R]):
    """The work on an item, if it waits for the store most of its time. It must be picklable.
    `opened`: opens the resources of the work; entered once in this process, and for each item on an
    executor.
    """

    label: str
    opened: Callable[[], AbstractAsyncContextManager[Opened]]
    run: Callable[[Opened, T, Report], Coroutine[Any, Any, R]]
    name: Callable[[T], str] = str
    size: Callable[[R], int] = lambda result: 0

    def __call__(self, item: T) -> R:
        """Do the work on one item alone."""

        async def done() -> R:
            async with self.opened() as resource:
                return await self.run(resource, item, lambda done, total: None)

        return asyncio.run(done())


AnyWork = Work[T, R] | StoreWork[Any, T, R]


class Runner(ABC):
    """Runs a job's work on its items, on this machine or on Spark. `log`: the log settings of the
    worker processes.
    """

    def __init__(
        self, on_progress: OnProgress = lambda progress: None, log: LogConfig | None = None
    ) -> None:
        self._on_progress = on_progress
        self._log = log or LogConfig()

    def each(
        self,
        items: Sequence[T],
        work: AnyWork[T, R],
        on_result: Callable[[R], None] = lambda result: None,
    ) -> Done[R]:
        """`on_result` gets the results in the order of the items, as early as possible; on Spark,
        at the end.

        Raises PipelineFailed if a worker process is lost (on Spark: more often than
        spark.task.maxFailures allows). Finished work stays, and the next run does the rest.
        """
        outcomes = _Outcomes(items, work.name, work.size, on_result)
        if items:
            with _report_progress(outcomes.progress, self._on_progress):
                self._run(work, outcomes)
                if numbers := outcomes.retriable_numbers():
                    again = _Outcomes([items[n] for n in numbers], work.name, work.size, on_result)
                    self._run(work, again)
                    outcomes.replace(numbers, again)
        return outcomes.done()

    @abstractmethod
    def _run(self, work: AnyWork[T, R], outcomes: _Outcomes[T, R]) -> None:
        """Add the outcome of every item. Raises PipelineFailed."""

    @abstractmethod
    def frame(self, rows: Sequence[tuple[Any, ...]], schema: str) -> Any:
        """A Spark DataFrame of the rows; without Spark it returns `rows`."""


class Here(Runner):
    """Runs StoreWork in this process, and Work in worker processes, one for each core."""

    def _run(self, work: AnyWork[T, R], outcomes: _Outcomes[T, R]) -> None:
        if isinstance(work, StoreWork):
            in_loop(_run_in_loop(work, outcomes))
            return
        with _workers(min(len(outcomes.items), os.cpu_count() or 1), self._log) as workers:
            numbers = {
                workers.submit(attempt, work.run, item, work.name(item)): number
                for number, item in enumerate(outcomes.items)
            }
            for future in as_completed(numbers):
                try:
                    outcomes.add(numbers[future], future.result())
                except BrokenProcessPool as error:
                    error_text = "a worker process was lost with its task"
                    raise PipelineFailed(
                        f"{error_text}; not finished: {outcomes.left()}"
                    ) from error

    def frame(self, rows: Sequence[tuple[Any, ...]], schema: str) -> Any:
        return list(rows)


class OnSpark(Runner):
    """Runs on the executors of `spark`, with a task for each item up to TASKS_MAX."""

    def __init__(
        self,
        spark: Any,
        on_progress: OnProgress = lambda progress: None,
        log: LogConfig | None = None,
    ) -> None:
        super().__init__(on_progress, log)
        self._spark = spark

    def _run(self, work: AnyWork[T, R], outcomes: _Outcomes[T, R]) -> None:
        context, label, items = self._spark.sparkContext, work.label, outcomes.items
        sizes = context.accumulator(outcomes.sizes, _Sizes())
        context.setJobGroup(f"fetchproxy-{label}", f"fetchproxy {label}", interruptOnCancel=True)
        tasks = context.parallelize(list(enumerate(items)), min(len(items), TASKS_MAX))
        try:
            rows = tasks.mapPartitions(partial(_on_executor, work, sizes, self._log)).collect()
        except KeyboardInterrupt:
            context.cancelJobGroup(f"fetchproxy-{label}")
            raise
        except Exception as error:
            error_text = _loss(error)
            if error_text is None:
                raise
            raise PipelineFailed(f"{error_text}; not finished: {outcomes.left()}") from error
        for number, outcome in rows:
            outcomes.add(number, outcome)

    def frame(self, rows: Sequence[tuple[Any, ...]], schema: str) -> Any:
        return self._spark.createDataFrame(rows, schema)


async def _run_in_loop(work: StoreWork[Opened, T, R], outcomes: _Outcomes[T, R]) -> None:
    pending = iter(enumerate(outcomes.items))

    in_a_row: list[ItemFailure] = []  # the last failures that may pass

    async def worker(resource: Opened) -> None:
        for number, item in pending:
            name = work.name(item)
            if len(in_a_row) >= ITEMS_FAILED_IN_A_ROW_MAX:
                cause = f"not tried, because others failed before: {in_a_row[0].error}"
                outcomes.add(number, replace(in_a_row[0], name=name, error=cause))
                continue
            outcome = await attempt_async(
                work.run(resource, item, partial(outcomes.on_progress, number)), name
            )
            outcomes.add(number, outcome)
            if isinstance(outcome, ItemFailure) and outcome.retriable:
                in_a_row.append(outcome)
            else:
                in_a_row.clear()

    async with AsyncExitStack() as stack:
        with _errors_of("") as failures:
            opened = await stack.enter_async_context(work.opened())
        for failure in failures:  # as on executors: a failure for each item
            for number, item in pending:
                outcomes.add(number, replace(failure, name=work.name(item)))
            return
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(AT_ONCE_HERE, len(outcomes.items))):
                workers.create_task(worker(opened))


@dataclass(eq=False, slots=True)
class _Outcomes(Generic[T, R]):
    """The outcome of every item, by its number."""

    items: Sequence[T]
    name: Callable[[T], str]
    size: Callable[[R], int]
    on_result: Callable[[R], None]
    sizes: dict[int, int] = field(default_factory=dict)
    _outcomes: dict[int, R | ItemFailure] = field(default_factory=dict)
    _reports: dict[int, tuple[int, int]] = field(default_factory=dict)
    _reported_count: int = 0

    def on_progress(self, number: int, done: int, total: int) -> None:
        self._reports[number] = (done, total)

    def add(self, number: int, outcome: R | ItemFailure) -> None:
        self._outcomes[number] = outcome
        self._reports.pop(number, None)
        self.sizes[number] = 0 if isinstance(outcome, ItemFailure) else self.size(outcome)
        while self._reported_count in self._outcomes:
            outcome = self._outcomes[self._reported_count]
            self._reported_count += 1
            if not isinstance(outcome, ItemFailure):
                self.on_result(outcome)

    def progress(self) -> Progress:
        sizes, reports = dict(self.sizes), dict(self._reports).values()
        return Progress(
            len(sizes),
            len(self.items),
            sum(sizes.values()) + sum(done for done, _ in reports),
            sum(done / total for done, total in reports if total),
        )

    def left(self) -> str:
        """The names of unfinished items."""
        return named([self.name(item) for i, item in enumerate(self.items) if i not in self.sizes])

    def retriable_numbers(self) -> list[int]:
        return [
            number
            for number, outcome in sorted(self._outcomes.items())
            if isinstance(outcome, ItemFailure) and outcome.retriable
        ]

    def replace(self, numbers: Sequence[int], again: _Outcomes[T, R]) -> None:
        """Take the outcomes of the second try; `numbers`: the numbers that its items have here."""
        for index, number in enumerate(numbers):
            self._outcomes[number] = again._outcomes[index]
            self.sizes[number] = again.sizes[index]

    def done(self) -> Done[R]:
        outcomes_in_order = [self._outcomes[number] for number in sorted(self._outcomes)]
        return Done(
            results=tuple(row for row in outcomes_in_order if not isinstance(row, ItemFailure)),
            failures=tuple(
                outcome for outcome in outcomes_in_order if isinstance(outcome, ItemFailure)
            ),
        )


class _Sizes:
    """Spark's AccumulatorParam for sizes by item number. A task that ran twice counts once."""

    def zero(self, value: dict[int, int]) -> dict[int, int]:
        return {}

    def addInPlace(self, one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
        one.update(other)
        return one


def _on_executor(
    work: AnyWork[T, R], done: Any, log: LogConfig, numbered: Iterable[tuple[int, T]]
) -> Iterator[tuple[int, R | ItemFailure]]:
    configure_logging(log, sys.stderr)  # in the worker, which Spark reuses
    for number, item in numbered:
        outcome = attempt(work, item, work.name(item))
        done.add({number: 0 if isinstance(outcome, ItemFailure) else work.size(outcome)})
        yield number, outcome
    freeze_loaded_modules()


def attempt(work: Callable[[T], R], item: T, name: str) -> R | ItemFailure:
    """The result or an ItemFailure."""
    with _errors_of(name) as failures:
        return work(item)
    return failures[0]


async def attempt_async(work: Coroutine[Any, Any, R], name: str) -> R | ItemFailure:
    """As `attempt`."""
    with _errors_of(name) as failures:
        return await work
    return failures[0]


@contextmanager
def _errors_of(name: str) -> Iterator[list[ItemFailure]]:
    """Turns errors into the failure of the item `name`. An OSError is of the worker's disk. Any
    other error is a defect: it is logged with its traceback, and costs no other item.
    """
    failures: list[ItemFailure] = []
    try:
        yield failures
    except Exception as error:
        errors = list(leaves(error))
        defects = [e for e in errors if not isinstance(e, FetchProxyError | OSError)]
        if defects:
            log.error("job_item_defect", part=name, exc_info=error)
        text = "; ".join(dict.fromkeys(_in_words(e, e in defects) for e in errors))
        retriable = not defects and all(getattr(e, "retriable", True) for e in errors)
        failures.append(ItemFailure(name, text, retriable))


def _in_words(error: BaseException, is_defect: bool) -> str:
    text = f"{type(error).__name__}: {error}"
    return f"{text} (a bug in fetchproxy: the log has the traceback)" if is_defect else text


def named(names: Sequence[str]) -> str:
    """The first few names and the number of the others."""
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _loss(error: Exception) -> str | None:
    """A message if `error` says that a task's process died at each attempt. None: another error."""
    text = str(error)
    if "Traceback (most recent call last)" in text or not any(s in text for s in _SIGNS_OF_LOSS):
        return None
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if "Task " in line and " failed " in line), "")
    return f"a worker process was lost with its task, every time it was tried ({first[:300]})"


@contextmanager
def _workers(count: int, log: LogConfig) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which are killed at the end, even during their work. Their writes are
    atomic.
    """
    others = set(active_children())
    with ProcessPoolExecutor(count, get_context("spawn"), _begin_worker, (log,)) as pool:
        try:
            yield pool
        finally:
            # ProcessPoolExecutor.kill_workers needs Python 3.14.
            for process in set(active_children()) - others:
                process.kill()


def _begin_worker(log: LogConfig) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals all; the parent decides
    configure_logging(log, sys.stderr)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    """Ends this worker when its parent ends, even if killed: no process would take the results."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _report_progress(
    read_progress: Callable[[], Progress], on_progress: OnProgress
) -> Iterator[None]:
    """Calls `on_progress` from its own thread while the body runs, and once at the end."""
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(_REPORT_INTERVAL_S):
            on_progress(read_progress())

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        on_progress(read_progress())
