"""A sweep as a kind of study."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from specbench_kit.core.plain_text import CsvRow
from specbench_kit.core.typed_json import JsonObject, Written
from specbench_kit.methods.spec import with_options
from specbench_kit.metrics.vocabulary import METRICS, MetricValues, PhaseValues
from specbench_kit.reports.document import Document, Figure
from specbench_kit.reports.sections import colocation
from specbench_kit.reports.study import StoredFiles, Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.studies.sweep import report
from specbench_kit.studies.sweep.batch_sizes import BATCH_SIZES
from specbench_kit.studies.sweep.plots import pictures
from specbench_kit.studies.sweep.summary import SweepDescription, SweepRow, SweepSummary

if TYPE_CHECKING:
    from rich.console import Console

SweepStudy = Study[SweepDescription, SweepSummary]
OldRow = JsonObject
"""A row of the summary of 0.2, whose columns are the axes of its sweep, metrics and their bounds."""
PHASES = tuple(field.name for field in structs.fields(PhaseValues))
BOUNDED = ("speedup", "typical_speedup")
"""Metrics of which a row of old files has the bounds of the interval beside them."""


class SweepKind(StudyKind[SweepDescription, SweepSummary]):
    """Methods over a grid of deployments and options."""

    command = "sweep"
    description = SweepDescription
    result = SweepSummary

    def headline(self, study: SweepStudy) -> str:
        """Return the fastest method, and where it is that."""
        return report.winner_sentence(study.result)

    def cautions(self, study: SweepStudy) -> list[str]:
        """Return what limits the result."""
        return report.cautions(study.run, study.result)

    def document(self, study: SweepStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        return report.build(study.run, study.result, figures)

    def pictures(self, study: SweepStudy) -> Iterable[Picture]:
        """Return the curves over the first axis, and the map of methods over two."""
        return pictures(study.result)

    def setting(self, study: SweepStudy) -> str:
        """Return the prompts and the deployment."""
        run = study.run
        deployment = run.deployment_name or "of the trace"
        return (
            f"modelled time, {run.dataset.name}, {run.requests} requests, deployment {deployment}"
        )

    def files(self, study: SweepStudy) -> Tables:
        """Return a row per point and method."""
        return {"sweep.csv": [table_row(row) for row in study.result.rows]}

    def print(self, console: "Console", study: SweepStudy) -> None:
        """Print the speedups by point and method, then where each method breaks even."""
        report.print_sweep(console, study.run, study.result)

    def upgraded(self, files: StoredFiles) -> StoredFiles:
        """Return files of 0.2, whose rows were those of the table and did not say which method they
        vary.
        """
        run, summary = files
        axes = summary["axes"]
        rows = [_typed_row(row, axes, list(run["config"]["methods"])) for row in summary["rows"]]
        return StoredFiles(run, {**summary, "rows": rows})


def table_row(row: SweepRow) -> CsvRow:
    """Return the row of the table: the values of the point, the method, and its metrics."""
    overall = row.overall
    # What follows from the rounds of one link alone says nothing where another link changes them.
    unknown = colocation.WINDOWS.keys() if colocation.follows_link(row.spec) else ()
    low, high = overall.bounds("speedup") or (None, None)
    typical_low, typical_high = overall.bounds("typical_speedup") or (None, None)
    return {
        **row.values,
        "method": row.spec,
        **{
            metric.name: None if metric.name in unknown else overall.value(metric.name)
            for metric in METRICS
            if metric.traits.in_sweeps
        },
        "speedup_low": low,
        "speedup_high": high,
        "typical_speedup": overall.typical_speedup,
        "typical_speedup_low": typical_low,
        "typical_speedup_high": typical_high,
        "ttft_mean_s": overall.ttft.mean,
        "tpot_mean_s": overall.tpot.mean,
        "tpot_p95_s": overall.tpot.p95,
        **{
            f"{phase}_s": seconds
            for phase, seconds in structs.asdict(overall.phase_seconds).items()
        },
    }


def _typed_row(
    row: OldRow, axes: Mapping[str, Sequence[object]], methods: Sequence[str]
) -> Written:
    """Return the row of an old file in the present form, with null for what such a file does not
    hold.
    """
    values = {key: row[key] for key in axes}
    spec = row["method"]
    series = next((method for method in methods if with_options(method, values) == spec), spec)
    bounds = {name: [row.get(f"{name}_low"), row.get(f"{name}_high")] for name in BOUNDED}
    overall = {
        **{field.name: None for field in structs.fields(MetricValues) if field.required},
        **{name: row[name] for name in row.keys() & {metric.name for metric in METRICS}},
        **{name: _distribution(name, row) for name in ("ttft", "tpot", "itl")},
        "acceptance_at": [],
        "acceptance_at_conditional": [],
        "phase_seconds": {phase: row.get(f"{phase}_s") for phase in PHASES},
        "phase_share": dict.fromkeys(PHASES),
        "intervals": {name: pair for name, pair in bounds.items() if None not in pair},
    }
    return {"values": values, "series": series, "spec": spec, "overall": overall}


def _distribution(name: str, row: OldRow) -> Written:
    return {
        "mean": row.get(f"{name}_mean_s"),
        "p50": None,
        "p95": row.get(f"{name}_p95_s"),
        "p99": None,
    }


SWEEP = SweepKind()
KINDS = (SWEEP, BATCH_SIZES)
