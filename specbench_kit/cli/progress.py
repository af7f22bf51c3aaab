"""Progress on stderr: bars in a terminal, and where it goes to a file a line a minute."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.reports.writing.formatting import count, data


class DecodingProgress(Protocol):
    """What a bar over decoding shows after each finished request."""

    @property
    def method(self) -> str:
        """The current method."""

    @property
    def done(self) -> int:
        """Finished requests."""

    @property
    def planned(self) -> int:
        """All requests."""

    @property
    def tokens_per_s(self) -> float:
        """The speed of the current method."""


LINE_EVERY_S = 60.0
"""Seconds between lines of progress where nobody sees a bar."""


class _Bar(Progress):
    """A progress display that disappears if the work never began, so that an error message stands
    alone.

    Where it goes to a file, a line a minute says how much of which step is done, and until when it
    will last.
    """

    written: Callable[[float], str] = staticmethod(count)
    """How a line writes the numbers of items."""

    def start(self) -> None:
        super().start()
        if not self.console.is_terminal:
            self._is_over = Event()
            self._begun: dict[TaskID, tuple[float, float]] = {}
            self._teller = Thread(target=self._tell, daemon=True)
            self._teller.start()

    def _tell(self) -> None:
        while not self._is_over.wait(LINE_EVERY_S):
            for line in self.lines():
                self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        if not self.console.is_terminal and changes.get("completed") is not None:
            # The first items that a step reports may have been done before: the speed is that of
            # what follows.
            self._begun.setdefault(task_id, (self.get_time(), changes["completed"]))

    def lines(self) -> list[str]:
        """Return a line for each step that has begun and is not over: how much of it is done, and
        until when.
        """
        lines = []
        for task in self.tasks:
            if not task.visible or not task.total or task.finished:
                continue
            begun_s, before = self._begun.get(task.id, (self.get_time(), task.completed))
            done, elapsed_s = task.completed - before, self.get_time() - begun_s
            of_all = f"{self.written(task.completed)} of {self.written(task.total)} ({task.percentage:.0f}%)"
            until = ""
            if done > 0 and elapsed_s > 0:
                left_s = (task.total - task.completed) * elapsed_s / done
                until = f", {self.written(60 * done / elapsed_s)} a minute, until about {_time_of_day(left_s)}"
            lines.append(f"{_time_of_day()} {task.description.strip()}: {of_all}{until}")
        return lines

    def stop(self) -> None:
        if not self.console.is_terminal and self.live.is_started:
            self._is_over.set()
            self._teller.join()
        if any(task.visible for task in self.tasks):
            super().stop()
        else:
            self.live.transient = True
            self.live.stop()


def _time_of_day(later_s: float = 0.0) -> str:
    """Return the time in so many seconds, with its day where that is not today."""
    now = datetime.now().astimezone()
    then = now + timedelta(seconds=later_s)
    return then.strftime("%H:%M" if then.date() == now.date() else "%d %B %H:%M")


@contextmanager
def decoding_bar() -> Iterator[Callable[[DecodingProgress], None]]:
    """Show finished requests, the current method with its tokens per second, and the remaining
    time.
    """
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:6.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with _Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("decoding", total=None, speed=0.0, visible=False)

        def report(progress: DecodingProgress) -> None:
            bar.update(
                task,
                description=progress.method,
                completed=progress.done,
                total=progress.planned,
                speed=progress.tokens_per_s,
                visible=True,
            )

        yield report


@contextmanager
def counting_bar(description: str, *, transient: bool = False) -> Iterator[CountCallback]:
    """Show how many items of one step are finished; what is transient leaves no trace at its end."""
    with _Bar(console=Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(description, total=None, visible=False)
        yield lambda done, planned: bar.update(task, completed=done, total=planned, visible=True)


@contextmanager
def stepping_bar(time: ProgressColumn | None = None) -> Iterator[ProgressCallback]:
    """Show one bar per step: its name, its finished items, and the elapsed time or another `time`
    column.
    """
    with stepping_bar_with_lines(time) as (report, _):
        yield report


@contextmanager
def stepping_bar_with_lines(
    time: ProgressColumn | None = None,
) -> Iterator[tuple[ProgressCallback, Callable[[str], None]]]:
    """Show bars as `stepping_bar` does; the second function prints a line above them."""
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        time or TimeElapsedColumn(),
    )
    with _Bar(*columns, console=Console(stderr=True)) as bar:
        yield _by_task(bar), lambda line: bar.console.print(line, highlight=False, markup=False)


@contextmanager
def download_bar() -> Iterator[ProgressCallback]:
    """Show one bar per file: its name, its bytes that are here, and the remaining time."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with _Bar(*columns, console=Console(stderr=True)) as bar:
        bar.written = data
        yield _by_task(bar)


def _by_task(bar: Progress) -> ProgressCallback:
    """Return a callback that shows each step, or each file, in a line of its own."""
    tasks: dict[str, TaskID] = {}

    def report(task: str, done: int, planned: int) -> None:
        if task not in tasks:
            tasks[task] = bar.add_task(task)
        bar.update(tasks[task], completed=done, total=planned)

    return report


@contextmanager
def loading_bar(console: Console) -> Iterator[ProgressCallback]:
    """Show a status line while models load, and bars as `stepping_bar` does once something is
    measured.
    """
    with ExitStack() as stack:
        status = stack.enter_context(console.status("loading models"))
        bars: list[ProgressCallback] = []

        def report(step: str, done: int, planned: int) -> None:
            if not bars:
                status.stop()  # rich shows only one live display at a time
                bars.append(stack.enter_context(stepping_bar()))
            bars[0](step, done, planned)

        yield report
