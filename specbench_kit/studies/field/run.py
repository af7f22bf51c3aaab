"""Predicts published tables, and writes their page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import decode
from specbench_kit.predictors.latency import stopwatch
from specbench_kit.reports.study import Study, finish
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunDescription
from specbench_kit.runs.folder import require_writable, to_json, unused_folder, write_text
from specbench_kit.studies.field.kind import FIELD_STUDY
from specbench_kit.studies.field.prediction import TablePrediction
from specbench_kit.studies.field.summary import FieldResult, FieldSummary
from specbench_kit.studies.field.tables import find_tables, is_of_field


def predict(
    names: Sequence[str],
    changes: Sequence[str],
    out: Path,
    to: Path | None,
    report: ProgressCallback,
    argv: Sequence[str],
) -> Study[RunDescription, FieldSummary]:
    """Predict every named table into a new folder of `out`, or into the folder `to`, where other
    tables stay as they are. Numbers are written after each table.

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
    results = _earlier(folder, list(changes))
    for name, table in chosen.items():
        elapsed_s = stopwatch()

        def progress(done: int, planned: int, name: str = name) -> None:
            report(name, done, planned)

        result = TablePrediction(table, tuple(changes)).result(progress)
        result.wall_s = elapsed_s()
        results[name] = result
        write_text(folder / FIELD_STUDY.summary, to_json(_summary(results, changes)))
    described = {
        "command": FIELD_STUDY.command,
        **provenance.collect(tuple(argv), arithmetic=True),
    }
    return finish(FIELD_STUDY, folder, described, _summary(results, changes))


def _summary(results: Mapping[str, FieldResult], changes: Sequence[str]) -> FieldSummary:
    return FieldSummary(dict(sorted(results.items())), list(changes))


def _earlier(folder: Path, changes: list[str]) -> dict[str, FieldResult]:
    """Return the tables that an earlier call left in a folder; raise SkitError if they had other
    inputs: a page would show both alike.
    """
    file = folder / FIELD_STUDY.summary
    if not file.exists():
        return {}
    try:
        earlier = decode(FieldSummary, file.read_bytes())
    except ValueError as error:
        raise SkitError(
            f"{file} was not written by skit reproduce field ({error}): choose another --to"
        ) from error
    require(
        earlier.changes == changes,
        f"{folder} holds tables with {', '.join(earlier.changes) or 'their own inputs'}: choose another folder with "
        "--to for other inputs",
    )
    return earlier.tables
