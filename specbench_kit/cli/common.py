"""Steps that several commands take before and after their work, and the option `--json` that they
share.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specbench_kit.cli.exit_codes import FAILED
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.errors import SkitError, by_reason
from specbench_kit.core.option import OUTPUT, Option
from specbench_kit.core.plain_text import one_line, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from specbench_kit.datasets.base import LoadedDataset
    from specbench_kit.reports.study import Study


def command_line() -> tuple[str, ...]:
    """Return the command as the user typed it, for run.json."""
    return ("skit", *sys.argv[1:])


def say(console: "Console", line: str, style: str = "") -> None:
    """Print one line literally, without markup.

    It breaks between words at a terminal; a file has it in one line.
    """
    from rich.text import Text

    whole = one_line(line)
    for part in wrapped(whole, console.width) if console.is_terminal else [whole]:
        console.print(Text(part, style=style), soft_wrap=True)


def say_report(console: "Console", folder: Path, stem: str = "report") -> None:
    """Print where a report is: its page for a browser first, where it has one."""
    page = folder / f"{stem}.html"
    text = page.with_suffix(".md")
    say(console, f"report: {page} (as text: {text.name})" if page.exists() else f"report: {text}")


def tell_report(
    console: "Console", folder: Path, summary: object, as_json: bool, stem: str = "report"
) -> None:
    """Print where the report is and, if asked for, the summary as JSON on the last line of
    stdout.
    """
    say_report(console, folder, stem)
    if as_json:
        print_json({"run_dirs": [str(folder)], "summary": summary})


def tell_study(console: "Console", study: "Study[Any, Any]", as_json: bool) -> None:
    """Print what a study found, where its page is and, if asked for, the result as JSON."""
    study.kind.print(console, study)
    tell_report(console, study.folder, study.kind.content(study.result), as_json, study.kind.page)


def print_json(content: object) -> None:
    """Print the result of a command as JSON on the last line of stdout; structs become objects."""
    from msgspec import to_builtins

    print(json.dumps(content, allow_nan=False, default=to_builtins))


MOST_LEFT_OUT = 3
"""Methods that could not run for which a terminal says why, where a report does so of all."""


def say_left_out(
    console: "Console", left_out: "Mapping[str, str]", *, in_report: bool = False
) -> None:
    """Print why methods could not run, one line per reason; of many only their names if the report
    says why.
    """
    if in_report and len(left_out) > MOST_LEFT_OUT:
        names = ", ".join(list(left_out)[:MOST_LEFT_OUT])
        say(
            console,
            f"left out: {names} and {len(left_out) - MOST_LEFT_OUT} more; the report says why",
        )
        return
    for reason, specs in by_reason(left_out).items():
        say(console, f"left out: {', '.join(specs)}: {reason}")


def require_all(failed: "Mapping[str, int]") -> None:
    """End the command with exit code 1 if requests failed; `failed` holds their number by
    method.
    """
    import typer

    if failures := {name: count for name, count in failed.items() if count}:
        counts = ", ".join(f"{count} of {name}" for name, count in failures.items())
        print(f"strict: requests failed: {counts}", file=sys.stderr)
        raise typer.Exit(FAILED)


def require_file(path: Path, example: str) -> None:
    """Raise SkitError, before the work begins, if the file for its result is a folder, or is named
    like one.
    """
    suffix = Path(example).suffix
    if path.is_dir():
        raise SkitError(
            f"--out {path} is a folder: give the file to be written, such as {path / example}"
        )
    if path.suffix != suffix:
        raise SkitError(
            f"--out {path} must end in {suffix}, as it is one file: give {path / example}"
        )


def say_disturbed(console: "Console", doubts: "Sequence[str]", names: str) -> None:
    """Print that what was saved is marked as disturbed, and used only where its name is given."""
    line = (
        f"DISTURBED MACHINE: {'; '.join(doubts)}. What is saved is marked as DISTURBED and used only where it is named "
        f"({names}): run it again on a quiet machine, or with --force to have it used by default."
    )
    say(console, line, style="bold red")


def say_target(console: "Console", target: str) -> None:
    """Print which pair `--target auto` stands for: the toy pair in capitals, and how to get a real
    one.
    """
    from specbench_kit.models.catalogue import AUTO, BUNDLED, resolve_target
    from specbench_kit.models.named import NAMED_PAIRS, size_text

    if target != AUTO:
        return
    name = resolve_target(target)
    if name != BUNDLED:
        say(console, f"target: {name}, the best pair that was fetched; --target names another")
        return
    # Pairs that come in files of known content need neither an account nor a GPU.
    pairs = [pair for pair in NAMED_PAIRS.values() if pair.target.sha256]
    ways = " or ".join(f"skit fetch {pair.name} ({size_text(pair.size_bytes)})" for pair in pairs)
    line = (
        "TOY PAIR: NO REAL MODEL WAS FETCHED, SO THE SMALL BUNDLED PAIR RUNS. ITS ANSWERS ARE NONSENSE, AND ITS "
        f"SPEEDUP IS NOT THAT OF A LANGUAGE MODEL. A real pair: {ways}; --target bundled hides this line."
    )
    say(console, line, style="bold black on yellow")


def load_dataset(
    options: DatasetOptions,
    limit: int | None,
    seed: int,
    console: "Console",
    *,
    to_train: bool = False,
) -> "LoadedDataset":
    """Load the prompts, and print one conspicuous line if they are only a bundled sample."""
    from specbench_kit.datasets.loading import load

    dataset = load(
        options.dataset,
        data_dir=options.data_dir,
        allow_sample=options.sample,
        limit=limit,
        seed=seed,
        to_train=to_train,
    )
    if dataset.source == "sample":
        line = (
            f"SAMPLE DATA: '{dataset.name}' was not found; the bundled sample '{dataset.location}' with "
            f"{len(dataset.prompts)} prompts is used instead ({dataset.reason}). --no-sample forbids this."
        )
        say(console, line, style="bold black on yellow")
    return dataset


JsonOption = Annotated[
    bool,
    Option(
        "Print the result as one line of JSON on stdout; tables go to stderr.", OUTPUT, flag="json"
    ),
]
