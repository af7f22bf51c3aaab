"""What is told of long work where nobody watches: a line a minute, with how much is done and until when."""

import re
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from threading import Event

import pytest

from specbench_kit.cli import progress
from specbench_kit.cli.progress import counting_bar, decoding_bar, download_bar, stepping_bar
from specbench_kit.studies.bench.lanes import Progress


class Ticks(Event):
    """Lets a line be written whenever the test says so, and no other."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout in (None, progress.LINE_EVERY_S)
        TICKS.wait()
        TICKS.clear()
        return self.is_set()

    def set(self) -> None:
        super().set()
        TICKS.set()


TICKS = Event()


@pytest.fixture
def shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[], str]]:
    """Let a minute pass, and return the line that was written then."""
    monkeypatch.setattr(progress, "Event", Ticks)
    written = Event()
    lines: list[str] = []
    tell = progress._Bar.lines

    def lines_of(bar: progress._Bar) -> list[str]:
        lines[:] = tell(bar)
        written.set()
        return lines

    monkeypatch.setattr(progress._Bar, "lines", lines_of)

    def pass_a_minute() -> str:
        written.clear()
        TICKS.set()
        assert written.wait(10)
        return "\n".join(lines)

    yield pass_a_minute
    assert sys.stderr is not None
    for line in lines:
        assert line in capsys.readouterr().err


def test_a_line_says_what_is_done_of_all_and_until_when(
    shown: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [100.0]
    monkeypatch.setattr("rich.console.monotonic", lambda: moment[0])
    with stepping_bar() as report:
        assert shown() == ""
        report("reading", 40, 1000)  # of an earlier run: they took no time now
        moment[0] += 30
        report("reading", 100, 1000)
        until = datetime.now().astimezone() + timedelta(seconds=450)
        line = shown()
        assert re.fullmatch(
            r"\d\d:\d\d reading: 100 of 1,000 \(10%\), 120 a minute, until about .*", line
        )
        assert line.endswith((f"{until:%H:%M}", f"{until + timedelta(seconds=5):%H:%M}"))
        report("reading", 1000, 1000)
        report("writing", 0, 2)
        assert re.fullmatch(r"\d\d:\d\d writing: 0 of 2 \(0%\)", shown())


def test_every_bar_writes_lines(shown: Callable[[], str]) -> None:
    with decoding_bar() as decoding:
        decoding(Progress("wisp", 3, 6, 21.0))
        assert " wisp: 3 of 6 (50%)" in shown()
    with counting_bar("recording") as counting:
        counting(1, 4)
        assert " recording: 1 of 4 (25%)" in shown()
    with download_bar() as downloading:
        downloading("model.gguf", 5_000_000, 10_000_000)
        assert " model.gguf: 5.00 MB of 10.0 MB (50%)" in shown()
