"""One call of `skit reproduce`: from names to a folder of pages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.renamed import with_current_names
from specbench_kit.papers.experiment import experiments, find
from specbench_kit.reports.experiments import pages
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.studies.reproduction.reproduction import reproduce

SUMMARY = "summary.json"


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
    report: ProgressCallback,
    argv: Sequence[str],
) -> Outcome:
    """Reproduce every named experiment; the pages go with run.json into a new folder of `out`.

    Or into `to`, where others' results stay as they are. Numbers are written as they come.
    """
    chosen = list(dict.fromkeys(one.name for name in names for one in find(name)))
    folder = to or unused_folder(out, "reproduce", "-".join(names), {"names": chosen, "changes": dict(changes)})
    together = _before(folder)
    for name in chosen:
        together[name] = reproduce(find(name)[0], report, dict(changes), sensitivity=sensitivity)
        # what an interruption leaves can be gone on from, by the names that are missing
        write_text(folder / SUMMARY, to_json({"experiments": dict(sorted(together.items()))}))
    pages.write(folder, [together[name] for name in sorted(together)])
    write_text(folder / "run.json", to_json({"command": "reproduce", **provenance.collect(tuple(argv))}))
    return Outcome(folder, {"experiments": [together[name] for name in chosen]})


def _before(folder: Path) -> dict[str, Any]:
    """What an earlier call left in a folder, by experiment."""
    file = folder / SUMMARY
    if not file.exists():
        return {}
    try:
        found: dict[str, Any] = with_current_names(json.loads(file.read_text(encoding="utf-8")), str(file))[
            "experiments"
        ]
        return {name: one for name, one in found.items() if name in experiments()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SkitError(f"{file} is of no skit reproduce: choose another --to") from error
