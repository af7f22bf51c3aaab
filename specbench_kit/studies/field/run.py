"""Predicts published tables, and writes their page."""

from collections.abc import Sequence
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.predictors.latency import stopwatch
from specbench_kit.reports.study import Study, finish
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunDescription
from specbench_kit.runs.folder import require_writable, unused_folder
from specbench_kit.studies.field.kind import FIELD_STUDY
from specbench_kit.studies.field.prediction import TablePrediction
from specbench_kit.studies.field.summary import FieldSummary
from specbench_kit.studies.field.tables import find_tables, is_of_field


def predict(
    names: Sequence[str],
    changes: Sequence[str],
    out: Path,
    to: Path | None,
    report: ProgressCallback,
    argv: Sequence[str],
) -> Study[RunDescription, FieldSummary]:
    """Predict every named table into a new folder of `out`, or into the folder `to`.

    `changes` are fields of the tables' deployments, as `--set` gives them.
    """
    if others := [name for name in names if not is_of_field(name)]:
        raise SkitError(
            f"{', '.join(others)}: experiments of papers and tables of the field have pages of their own; "
            "reproduce them in two calls"
        )
    chosen = find_tables(list(names))
    folder = to or unused_folder(
        out, "reproduce", "-".join(names), {"names": list(chosen), "changes": list(changes)}
    )
    require_writable(folder)
    results = {}
    for name, table in chosen.items():
        elapsed_s = stopwatch()

        def progress(done: int, planned: int, name: str = name) -> None:
            report(name, done, planned)

        result = TablePrediction(table, tuple(changes)).result(progress)
        result.wall_s = elapsed_s()
        results[name] = result
    described = {
        "command": FIELD_STUDY.command,
        **provenance.collect(tuple(argv), arithmetic=True),
        **({"replaced": list(changes)} if changes else {}),
    }
    return finish(FIELD_STUDY, folder, described, FieldSummary(results))
