"""Compare every method with its defaults, with tuned options and with its authors' claim, for each clock.

    python scripts/default_and_tuned.py FOLDER NAME [NAME ...] --out results/reference/tuned

Below FOLDER, NAME and NAME-tuned hold runs of `skit bench`, and tuned-NAME.json holds the choice of `skit tune`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas

from specbench_kit.api import Result, load
from specbench_kit.methods.base import methods
from specbench_kit.reports.document import code
from specbench_kit.reports.render_markdown import table
from specbench_kit.studies.bench.tuned_options import TunedMethod
from specbench_kit.studies.bench.tuned_options import load as load_tuned

COLUMNS = [
    "method",
    "as it comes",
    "tuned",
    "options",
    "acceptance length",
    "acceptance",
    "drafted / token",
    "reported",
]


def measured(runs: Result) -> pandas.DataFrame:
    """Return the metrics of runs by method."""
    found = runs.to_pandas()
    return found.set_index(found["method"].str.extract(r"^([\w-]+)")[0])


def interval(row: pandas.Series) -> str:
    """Return the speedup over plain decoding, with its interval if it has one."""
    if pandas.isna(row["speedup"]):
        return "–"
    within = "" if pandas.isna(row["speedup_low"]) else f" ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})"
    return f"{row['speedup']:.2f}{within}"


def gained_and_cost(row: pandas.Series) -> list[str]:
    """Return the acceptance length, the acceptance rate, and drafted tokens for each of the answer."""
    numbers = (row["acceptance_length"], row["acceptance_rate"], row["drafted"] / row["tokens"])
    forms = ("{:.2f}", "{:.0%}", "{:.2f}")
    return ["–" if pandas.isna(number) else form.format(number) for form, number in zip(forms, numbers, strict=True)]


def lines(plain: pandas.DataFrame, best: pandas.DataFrame, chosen: Mapping[str, TunedMethod]) -> Iterator[list[str]]:
    """Return one line per method, the fastest tuned method first."""
    for method in best["speedup"].sort_values(ascending=False).index:
        options = chosen[method].spec.partition(":")[2] if method in chosen else ""
        before = interval(plain.loc[method]) if method in plain.index else "–"
        claim = methods.get(method).reported_result
        facts = gained_and_cost(best.loc[method])
        yield [code(method), before, interval(best.loc[method]), code(options) if options else "", *facts, claim]


def section(folder: Path, name: str) -> list[str]:
    """Return the section of a clock: warnings about the machine for measured times, then the table."""
    runs = {part: load(folder / part) for part in (name, f"{name}-tuned")}
    warnings = [f"{part}: {line}" for part, result in runs.items() for line in result.warnings if "DISTURBED" in line]
    chosen = load_tuned(folder / f"tuned-{name}.json").methods
    return [f"## {name}", *warnings, table(COLUMNS, list(lines(*map(measured, runs.values()), chosen)))]


def document(folder: Path, names: Sequence[str]) -> str:
    """Return the page, with one section per clock."""
    parts = [
        "# As they come, and tuned",
        "Speedup over plain decoding with its 95% interval, greedy, one request at a time. Options were chosen by "
        "`skit tune` with one budget for all, on prompts of the train split; those of the test split decide here. "
        "Acceptance length (committed tokens per verification), acceptance and drafted tokens per token are the tuned "
        "method's. Methods "
        "without options, and those that cannot be replayed, are the same in both columns.",
    ]
    for name in names:
        parts += section(folder, name)
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "README.md").write_text(document(options.folder, options.names), encoding="utf-8")


if __name__ == "__main__":
    main()
