"""From records on disk to summary and report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.comparison import compare
from specbench_kit.metrics.cost import makespan_s
from specbench_kit.metrics.pipeline import summarise_pipeline
from specbench_kit.metrics.run_data import BenchmarkRun
from specbench_kit.metrics.states import summarise_states
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.metrics.units import batch_size
from specbench_kit.reports.comparison.document import ALL, write_reports
from specbench_kit.reports.run import markdown
from specbench_kit.runs.directory import RESUME_HINT, RunDirectory
from specbench_kit.runs.resumption import spans_interruption

TEXT = ("md",)


class OutputJudge(Protocol):
    """Judges a run's outputs."""

    def judge(
        self, run: dict[str, Any], method: Method, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]
    ) -> dict[str, Any]:
        """The parts `lossless` and `sampling` of its summary."""


class AnswerJudge(Protocol):
    """Judges what a run's answers are worth."""

    def judge(self, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]) -> dict[str, Any]:
        """The part `exact_match` of its summary, if any."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One run with its summary, as written to `summary.json`."""

    directory: RunDirectory
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run, as its files have them."""

    records: list[RequestRecord]
    baseline: list[RequestRecord]

    @classmethod
    def read(cls, run: RunDirectory) -> "RunRecords":
        """From its files."""
        return cls(run.records(), run.baseline_records())


def conclude(
    runs: Sequence[RunDirectory],
    evidence: OutputJudge,
    decode: Callable[[list[int]], str] | None,
    read: Callable[[RunDirectory], RunRecords] = RunRecords.read,
    quality: AnswerJudge | None = None,
) -> list[Conclusion]:
    """Write report and summary of every run, whose records `read` gives.

    Of several runs only the text, since figures and page stand in the report that sets them side by side.
    """
    oracle = next((_throughput(run, read(run).records) for run in runs if _reads_reference(run)), None)
    conclusions = []
    for run in runs:
        written = read(run)
        summary = _summarise(run, written, evidence, oracle)
        summary |= quality.judge(written.records, written.baseline) if quality else {}
        conclusions.append(Conclusion(run, summary))
        _write_report(conclusions[-1], written, ALL if len(runs) == 1 else TEXT, decode)
    for conclusion in conclusions:  # last, because the summary is what says that a run is complete
        conclusion.directory.write_summary(conclusion.summary)
    return conclusions


def write_report(
    conclusion: Conclusion, formats: Sequence[str] = ALL, decode: Callable[[list[int]], str] | None = None
) -> None:
    """A run's report, in its own folder."""
    _write_report(conclusion, RunRecords.read(conclusion.directory), formats, decode)


def _write_report(
    conclusion: Conclusion, written: RunRecords, formats: Sequence[str], decode: Callable[[list[int]], str] | None
) -> None:
    run = conclusion.directory
    found = BenchmarkRun(run.path, run.run, written.records, written.baseline, conclusion.summary)
    if found.records:
        write_reports(compare([found]), run.path, formats, decode, hint=RESUME_HINT)
    else:
        run.write_report("report.md", markdown.render(run.run, conclusion.summary, [], decode))


def _summarise(run: RunDirectory, written: RunRecords, evidence: OutputJudge, oracle: float | None) -> dict[str, Any]:
    records, baseline, method = written.records, written.baseline, parse_method(run.run["method"])
    failed = sum(record.finish_reason == "error" for record in records)
    deployment = run.run.get("deployment")
    if deployment and method.placement:
        deployment = deployment | {"placement": method.placement}
    timed = not spans_interruption(run.run)
    measured = summarise_run(
        records,
        baseline or None,
        deployment,
        oracle_throughput=oracle,
        timed=timed,
        batch_size=batch_size(run.run),
    )
    return {
        "method": run.run["method"],
        "partial": len(records) < run.run["requests"],
        "requests": {"planned": run.run["requests"], "finished": len(records) - failed, "failed": failed},
        "overlaps": method.overlaps,
        **measured,
        "pipeline": summarise_pipeline(records, method.pipeline.stages) if method.pipeline else None,
        **({"hidden_states": summarise_states(records, sent)} if (sent := run.run.get("hidden_states")) else {}),
        **evidence.judge(run.run, method, records, baseline),
    }


def _throughput(run: RunDirectory, records: Sequence[RequestRecord]) -> float | None:
    span_s = None if spans_interruption(run.run) else makespan_s(records)
    return sum(len(record.output_ids) for record in records) / span_s if span_s else None


def _reads_reference(run: RunDirectory) -> bool:
    return parse_method(run.run["method"]).needs_reference
