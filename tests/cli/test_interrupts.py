"""SIGINT and SIGTERM end every command alike, in one line that says what is kept; real processes have their tests."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import TinyPair, error_line, skit_here, write_rows
from typer.core import TyperCommand

from specbench_kit.cli import group
from specbench_kit.cli.commands import commands
from specbench_kit.cli.interrupts import kept_when_interrupted
from specbench_kit.core.errors import SkitError
from specbench_kit.traces.writing import UnfinishedTrace

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def ignoring() -> Iterator[None]:
    """Ignore SIGINT, as a shell lets it be ignored in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignoring")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", commands.all())
def test_every_command_hears_both_signals(
    name: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(name: str) -> TyperCommand:
        return TyperCommand(name, callback=lambda: signal.raise_signal(number))

    monkeypatch.setattr(group, "load_command", waiting)
    assert error_line(skit_here(name)) == "interrupted"
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("kept", "line"), [("all is kept", "interrupted; all is kept"), ("", "interrupted")]
)
def test_an_interrupt_says_what_is_kept_if_anything_is(kept: str, line: str) -> None:
    with pytest.raises(SkitError, match=f"^{line}$"), kept_when_interrupted(lambda: kept):
        raise KeyboardInterrupt


def test_an_interrupted_recording_names_resume_once_there_is_something_to_resume(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"q{i}", "prompt": "How many?"} for i in range(2))
    )
    limits = ("--max-new-tokens", 8, "--max-draft", 2, "--batch-size", 1)
    command = (
        "record",
        "--dataset",
        prompts,
        *limits,
        "--out",
        tmp_path / "trace.parquet",
        *tiny.options,
    )
    append = UnfinishedTrace.append

    def append_and_end(keeps: bool) -> Callable[..., None]:
        def ended(self: UnfinishedTrace, *arguments: object) -> None:
            if keeps:
                append(self, *arguments)
            raise KeyboardInterrupt

        return ended

    monkeypatch.setattr(UnfinishedTrace, "append", append_and_end(False))
    assert error_line(skit_here(*command)) == "interrupted"
    monkeypatch.setattr(UnfinishedTrace, "append", append_and_end(True))
    line = "interrupted; finished requests are kept (1), --resume continues with the others"
    assert error_line(skit_here(*command)) == line
    monkeypatch.undo()
    assert skit_here(*command, "--resume").returncode == 0
