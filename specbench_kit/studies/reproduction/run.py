"""One call of `skit reproduce`: from the names of experiments to a folder of pages."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.papers.experiment import experiments, find_experiments
from specbench_kit.predictors.latency import stopwatch
from specbench_kit.reports.experiments import pages
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import to_json, unused_folder, write_text
from specbench_kit.studies.reproduction.reproduction import reproduce

SUMMARY = "summary.json"


@dataclass(frozen=True)
class ReproductionOutcome:
    """The folder of a reproduction and its numbers."""

    folder: Path
    summary: JsonObject


def run(
    names: Sequence[str],
    changes: JsonObject,
    sensitivity: bool,
    out: Path,
    to: Path | None,
    report: ProgressCallback,
    argv: Sequence[str],
) -> ReproductionOutcome:
    """Reproduce every named experiment and write its pages and run.json.

    They go into a new folder of `out`, or into the folder `to`, where the results of other experiments stay as they
    are. Numbers are written after each experiment.
    """
    chosen = list(dict.fromkeys(experiment.name for name in names for experiment in find_experiments(name)))
    folder = to or unused_folder(out, "reproduce", "-".join(names), {"names": chosen, "changes": dict(changes)})
    results = _earlier_results(folder)
    for name in chosen:
        elapsed_s = stopwatch()
        result = reproduce(experiments()[name], report, changes, sensitivity=sensitivity)
        results[name] = {**result, "wall_s": elapsed_s()}
        # After an interruption, the user can name the experiments that are missing and keep these results.
        write_text(folder / SUMMARY, to_json({"experiments": dict(sorted(results.items()))}))
    pages.write(folder, [results[name] for name in sorted(results)])
    arithmetic = all(experiments()[name].command == "law" for name in chosen)
    origin = provenance.collect(tuple(argv), arithmetic=arithmetic)
    write_text(folder / "run.json", to_json({"command": "reproduce", **origin}))
    return ReproductionOutcome(folder, {"experiments": [results[name] for name in chosen]})


def _earlier_results(folder: Path) -> dict[str, JsonObject]:
    """Return the results that an earlier call left in a folder, by experiment."""
    file = folder / SUMMARY
    if not file.exists():
        return {}
    try:
        content: JsonObject = json.loads(file.read_text(encoding="utf-8"))
        return {name: result for name, result in content["experiments"].items() if name in experiments()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SkitError(f"{file} was not written by skit reproduce: choose another --to") from error
