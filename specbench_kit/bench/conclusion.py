"""From records on disk to summary and report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench_kit.bench.exports import written
from specbench_kit.bench.run_directory import RunDirectory
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.reports import losslessness, markdown, metrics
from specbench_kit.reports.losslessness import TopTwo
from specbench_kit.reports.pipeline import summarise_pipeline


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One run with its summary, as written to `summary.json`."""

    directory: RunDirectory
    summary: dict[str, Any]


def conclude(
    runs: Sequence[RunDirectory], top2: TopTwo | None, decode: Callable[[list[int]], str] | None
) -> list[Conclusion]:
    """Write report and summary of every run. Without `top2` (sampled runs) outputs are not compared."""
    oracle = next((_throughput(run.records()) for run in runs if _reads_reference(run)), None)
    conclusions = [Conclusion(run, _summarise(run, top2, oracle)) for run in runs]
    for run, summary in ((c.directory, c.summary) for c in conclusions):
        run.write_report("report.md", markdown.render(run.run, summary, run.records(), decode, written(run)))
    for conclusion in conclusions:  # last, because the summary is what says that a run is complete
        conclusion.directory.write_summary(conclusion.summary)
    return conclusions


def _summarise(run: RunDirectory, top2: TopTwo | None, oracle: float | None) -> dict[str, Any]:
    records, baseline, method = run.records(), run.baseline_records(), parse_method(run.run["method"])
    failed = sum(record.finish_reason == "error" for record in records)
    measured = metrics.summarise_run(records, baseline or None, run.run.get("deployment"), oracle_throughput=oracle)
    return {
        "method": run.run["method"],
        "partial": len(records) < run.run["requests"],
        "requests": {"planned": run.run["requests"], "finished": len(records) - failed, "failed": failed},
        "overlaps": method.overlaps,
        **measured,
        "pipeline": summarise_pipeline(records, method.pipeline.stages) if method.pipeline else None,
        "lossless": _check(run, records, baseline, top2) if baseline and top2 else None,
    }


def _check(
    run: RunDirectory, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord], top2: TopTwo
) -> dict[str, Any]:
    margin = losslessness.TIE_MARGINS[run.run["config"]["dtype"]]
    return losslessness.summarise_checks(losslessness.check_all(records, baseline, top2, margin), margin)


def _throughput(records: Sequence[RequestRecord]) -> float | None:
    makespan_s = metrics.makespan_s(records)
    return sum(len(record.output_ids) for record in records) / makespan_s if makespan_s else None


def _reads_reference(run: RunDirectory) -> bool:
    return parse_method(run.run["method"]).needs_reference
