"""One call of `skit reproduce`: from names to a folder of pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.experiments.reproduction import Report, reproduce
from specbench_kit.papers.experiment import find
from specbench_kit.reports.experiments import pages
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text


@dataclass(frozen=True)
class Outcome:
    """What it leaves: its folder, and its numbers."""

    folder: Path
    summary: dict[str, Any]


def run(
    names: Sequence[str],
    changes: Mapping[str, Any],
    sensitivity: bool,
    out: Path,
    to: Path | None,
    report: Report,
    argv: Sequence[str],
) -> Outcome:
    """Reproduce every named experiment; the pages go to `to`, or with run.json into a new folder of `out`."""
    chosen = list(dict.fromkeys(one.name for name in names for one in find(name)))
    found = [reproduce(one, report, dict(changes), sensitivity=sensitivity) for name in chosen for one in find(name)]
    folder = to or unused_folder(out, "reproduce", "-".join(names), {"names": chosen, "changes": dict(changes)})
    summary = {"experiments": found}
    pages.write(folder, found)
    write_text(folder / "summary.json", to_json(summary))
    write_text(folder / "run.json", to_json({"command": "reproduce", **provenance.collect(tuple(argv))}))
    return Outcome(folder, summary)
