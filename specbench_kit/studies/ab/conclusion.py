"""From the records of a run of `skit ab` to its summary and report."""

from dataclasses import dataclass
from pathlib import Path

from msgspec import to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.metrics.ab.summary import AbSummary
from specbench_kit.reports.ab import files
from specbench_kit.runs.folder import to_json, write_text
from specbench_kit.studies.ab.store import SUMMARY, AnswerStore


@dataclass(frozen=True, slots=True)
class AbOutcome:
    """A run's folder, its `run.json`, its summary, and the reason for which it ended early."""

    folder: Path
    run: JsonObject
    summary: AbSummary
    problem: SkitError | None = None


def conclude(store: AnswerStore, summary: AbSummary, problem: SkitError | None = None) -> AbOutcome:
    """Write summary and report of a run."""
    run = store.run
    files.write(store.folder, run, summary)
    write_text(store.folder / SUMMARY, to_json(to_builtins(summary)))
    return AbOutcome(store.folder, run, summary, problem)
