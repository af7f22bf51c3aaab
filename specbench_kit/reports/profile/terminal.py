"""A profiling run's result on the terminal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing import profiles as wording
from specbench_kit.reports.writing.console import print_warnings
from specbench_kit.reports.writing.formatting import seconds, share

if TYPE_CHECKING:
    from rich.console import Console

Fields = Mapping[str, Any]


def print_profiles(console: "Console", run: Fields, summary: Fields) -> None:
    """Coefficients and accuracy of every profile, then what must be known before using it."""
    from rich.text import Text

    print_warnings(console, machine.warnings(run))
    for profile in summary["profiles"].values():
        console.print(Text(wording.headline(profile), style="bold"))
        console.print(_coefficients(profile))
        if profile["source"] == "measured":
            console.print(_regimes(profile))
        console.print(Text(f"physical limit: {wording.verdict_of(profile)}"))
        for caution in wording.cautions(run, profile):
            if not caution.startswith("ANALYTIC"):
                console.print(Text(caution, style="bold yellow"))
    if summary["policy"]:
        console.print(Text(f"a stop rule costs {seconds(summary['policy']['per_token_s'])} per drafted token"))


def _coefficients(profile: Fields) -> Any:
    rows = [
        (
            wording.SYMBOLS[name],
            seconds(value),
            " to ".join(seconds(bound) for bound in profile["intervals"][name]),
            seconds(profile["limits"].get(name)),
            f"per {wording.UNITS[name].partition(' (')[0]}",
        )
        for name, value in profile["coefficients"].items()
    ]
    return _table(("", "time", "95% interval", "physical bound", ""), rows)


def _regimes(profile: Fields) -> Any:
    rows = [
        (
            f"{name}, {part}",
            str(found["count"]),
            seconds(found["mean_s"]),
            seconds(found["mae_s"]),
            share(found["mape"]),
        )
        for name, split in profile["regimes"].items()
        for part, found in split.items()
    ]
    return _table(("regime", "configurations", "mean time", "MAE", "MAPE"), rows)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column(header[0], no_wrap=True)
    for column in header[1:]:
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
