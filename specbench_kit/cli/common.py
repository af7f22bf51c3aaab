"""What several commands do before and around their work."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset


def command_line() -> tuple[str, ...]:
    """Return the command as it was typed, for run.json."""
    return ("skit", *sys.argv[1:])


def say(console: "Console", line: str, style: str = "") -> None:
    """Print one line as it is: no markup, no wrapping."""
    from rich.text import Text

    console.print(Text(one_line(line), style=style), soft_wrap=True)


def tell_report(
    console: "Console", folder: Path, summary: dict[str, Any], as_json: bool, name: str = "report.md"
) -> None:
    """Say where the report lies, and end stdout with the summary where that is asked for."""
    say(console, f"report: {folder / name}")
    if as_json:
        print(json.dumps({"run_dirs": [str(folder)], "summary": summary}, allow_nan=False))


def require_all(failed: "Mapping[str, int]") -> None:
    """End with exit code 1 where requests failed; `failed` counts them by what they were asked of."""
    import typer

    if wrong := {name: number for name, number in failed.items() if number}:
        counts = ", ".join(f"{number} of {name}" for name, number in wrong.items())
        print(f"strict: requests failed: {counts}", file=sys.stderr)
        raise typer.Exit(1)


def require_file(path: Path) -> None:
    """Refuse a folder before the work is done whose result is to be that file."""
    if path.is_dir():
        raise SkitError(f"--out {path} is a folder: give the file to be written, such as {path / 'result'}")


def not_saved(doubts: "Sequence[str]", kept: str) -> SkitError:
    """What ends a command whose result lies in its run folder alone."""
    return SkitError(
        f"not saved, since the machine was disturbed while steps were timed: {'; '.join(doubts)}; run it again on a "
        f"quiet machine, or with --force; what came out is kept: {kept}"
    )


def load_dataset(
    asked: DatasetOptions, limit: int | None, seed: int, console: "Console", *, to_train: bool = False
) -> "LoadedDataset":
    """The prompts, with one unmissable line where a bundled sample stands in."""
    from specbench_kit.datasets.loading import load

    loaded = load(
        asked.dataset,
        data_dir=asked.data_dir,
        allow_sample=asked.sample,
        limit=limit,
        seed=seed,
        to_train=to_train,
    )
    if loaded.source == "sample":
        line = (
            f"SAMPLE DATA: '{loaded.name}' was not found, {len(loaded.prompts)} prompts of the bundled sample "
            f"'{loaded.location}' stand in ({loaded.reason}). --no-sample forbids this."
        )
        say(console, line, style="bold black on yellow")
    return loaded
