"""Progress bars, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    # Lanes decode with torch, which a bar over simulations should not wait for.
    from specbench_kit.studies.bench import lanes


class _Bar(Progress):
    """A progress display that disappears if the work never began, so that an error message stands alone."""

    def stop(self) -> None:
        if any(task.visible for task in self.tasks):
            super().stop()
        else:
            self.live.transient = True
            self.live.stop()


@contextmanager
def decoding_bar() -> Iterator[Callable[["lanes.Progress"], None]]:
    """Show finished requests, the current method with its tokens per second, and the remaining time."""
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:6.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with _Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("decoding", total=None, speed=0.0, visible=False)

        def report(progress: "lanes.Progress") -> None:
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
def counting_bar(description: str) -> Iterator[CountCallback]:
    """Show how many items of one step are finished."""
    with _Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=None, visible=False)
        yield lambda done, planned: bar.update(task, completed=done, total=planned, visible=True)


@contextmanager
def stepping_bar(time: ProgressColumn | None = None) -> Iterator[ProgressCallback]:
    """Show one bar per step: its name, its finished items, and the elapsed time or another `time` column."""
    with stepping_bar_with_lines(time) as (report, _):
        yield report


@contextmanager
def stepping_bar_with_lines(
    time: ProgressColumn | None = None,
) -> Iterator[tuple[ProgressCallback, Callable[[str], None]]]:
    """Show bars as `stepping_bar` does; the second function prints a line above them."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), time or TimeElapsedColumn())
    with _Bar(*columns, console=Console(stderr=True)) as bar:
        yield _by_task(bar), lambda line: bar.console.print(line, highlight=False, markup=False)


@contextmanager
def download_bar() -> Iterator[ProgressCallback]:
    """Show one bar per file: its name, its bytes that are here, and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with _Bar(*columns, console=Console(stderr=True)) as bar:
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
    """Show a status line while models load, and bars as `stepping_bar` does once something is measured."""
    with ExitStack() as stack:
        status = stack.enter_context(console.status("loading models"))
        bars: list[ProgressCallback] = []

        def report(step: str, done: int, planned: int) -> None:
            if not bars:
                status.stop()  # rich shows only one live display at a time
                bars.append(stack.enter_context(stepping_bar()))
            bars[0](step, done, planned)

        yield report
