"""The demo's output: numbered acts, short sentences, progress bars and a closing table.

This module knows nothing about Kafka. Without a terminal it prints the same lines without
animation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_LABEL_WIDTH = 30
_WIDTH_WITHOUT_TERMINAL = 110


class Narrator:
    """Prints to stdout. Sentences may contain rich's markup; `quote` escapes other text."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            # Logs have no width limit, and 80 columns would fold the table.
            self._console = Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)
        self._acts = 0

    def act(self, title: str) -> None:
        self._acts += 1
        self._console.print()
        self._console.print(f"[bold cyan]{self._acts}. {title}[/]")

    def say(self, sentence: str) -> None:
        self._console.print(f"   {sentence}", soft_wrap=True)

    def good(self, sentence: str) -> None:
        """Prints a claim that has just been checked."""
        self._console.print(f" [green]✓[/] {sentence}", soft_wrap=True)

    def bad(self, sentence: str) -> None:
        self._console.print(f" [bold red]✗[/] {sentence}", soft_wrap=True)

    @contextmanager
    def bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Yields a function that shows how many of `total` are done."""
        with self.bars({label: total}) as show:
            yield lambda done: show(done)

    @contextmanager
    def bars(self, totals: dict[str, int]) -> Iterator[Callable[..., None]]:
        """Several bars, by label. Yields a function that shows how many of each are done."""
        progress = Progress(
            TextColumn(f"   {{task.description:<{_LABEL_WIDTH}}}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        with progress:
            tasks = [progress.add_task(label, total=total) for label, total in totals.items()]

            def show(*done: int) -> None:
                for task, completed in zip(tasks, done, strict=True):
                    progress.update(task, completed=completed)

            yield show

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(table)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        with self._console.status(f"{what} …"):
            yield


def quote(text: str) -> str:
    """Escapes `text`, so that its brackets are not markup."""
    return escape(text)
