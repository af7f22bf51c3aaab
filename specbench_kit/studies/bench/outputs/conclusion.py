"""From the records on disk to summary and report."""

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
from specbench_kit.reports import render_markdown
from specbench_kit.reports.comparison.files import ALL, write_reports
from specbench_kit.reports.run import report
from specbench_kit.runs.directory import RESUME_HINT, RunDirectory
from specbench_kit.runs.resumption import spans_interruption

MARKDOWN_ONLY = ("md",)

Decode = Callable[[list[int]], str]
"""Turns token ids into text."""


class OutputJudge(Protocol):
    """Judges a run's outputs."""

    def judge(
        self, run: dict[str, Any], method: Method, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]
    ) -> dict[str, object]:
        """Return the parts `lossless` and `sampling` of the run's summary."""


class AnswerJudge(Protocol):
    """Judges a run's answers by reference answers."""

    def judge(self, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]) -> dict[str, object]:
        """Return the part `exact_match` of the run's summary, if any."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One run with its summary, as written to `summary.json`."""

    directory: RunDirectory
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run and of its baseline."""

    records: list[RequestRecord]
    baseline: list[RequestRecord]

    @classmethod
    def read(cls, run: RunDirectory) -> "RunRecords":
        """Read the records from the run's files."""
        return cls(run.records(), run.baseline_records())


def conclude(
    runs: Sequence[RunDirectory],
    output_judge: OutputJudge,
    decode: Decode | None,
    read: Callable[[RunDirectory], RunRecords] = RunRecords.read,
    answer_judge: AnswerJudge | None = None,
) -> list[Conclusion]:
    """Write report and summary of every run, whose records `read` returns.

    Reports of several runs are text only, since figures and HTML page belong to the report that compares the runs.
    """
    oracles = (run for run in runs if parse_method(run.run["method"]).needs_reference)
    oracle = next((_throughput(run, read(run).records) for run in oracles), None)
    conclusions = []
    for run in runs:
        records = read(run)
        summary = _summarise(run, records, output_judge, oracle)
        summary |= answer_judge.judge(records.records, records.baseline) if answer_judge else {}
        conclusions.append(Conclusion(run, summary))
        write_report(conclusions[-1], ALL if len(runs) == 1 else MARKDOWN_ONLY, decode, records)
    for conclusion in conclusions:  # last, because the summary marks a run as complete
        conclusion.directory.write_summary(conclusion.summary)
    return conclusions


def write_report(
    conclusion: Conclusion,
    formats: Sequence[str] = ALL,
    decode: Decode | None = None,
    run_records: RunRecords | None = None,
) -> None:
    """Write a run's report into its own folder; the records are read from there unless they are given."""
    directory, summary = conclusion.directory, conclusion.summary
    records = run_records or RunRecords.read(directory)
    if records.records:
        run = BenchmarkRun(directory.path, directory.run, records.records, records.baseline, summary)
        write_reports(compare([run]), directory.path, formats, decode, hint=RESUME_HINT)
    else:
        document = report.build(directory.run, summary, [], decode)
        directory.write_report("report.md", render_markdown.render(document))


def _summarise(
    directory: RunDirectory, run_records: RunRecords, output_judge: OutputJudge, oracle: float | None
) -> dict[str, Any]:
    run, records, baseline = directory.run, run_records.records, run_records.baseline
    method = parse_method(run["method"])
    failed = sum(record.finish_reason == "error" for record in records)
    deployment = run.get("deployment")
    if deployment and method.placement:
        deployment = deployment | {"placement": method.placement}
    measured = summarise_run(
        records,
        baseline or None,
        deployment,
        oracle_throughput=oracle,
        timed=not spans_interruption(run),
        batch_size=batch_size(run),
    )
    return {
        "method": run["method"],
        "partial": len(records) < run["requests"],
        "requests": {"planned": run["requests"], "finished": len(records) - failed, "failed": failed},
        "overlaps": method.overlaps,
        **measured,
        "pipeline": summarise_pipeline(records, method.pipeline.stages) if method.pipeline else None,
        **({"hidden_states": summarise_states(records, states)} if (states := run.get("hidden_states")) else {}),
        **output_judge.judge(run, method, records, baseline),
    }


def _throughput(run: RunDirectory, records: Sequence[RequestRecord]) -> float | None:
    """Return tokens per second over all requests; None if an interruption makes the clock meaningless."""
    span_s = None if spans_interruption(run.run) else makespan_s(records)
    return sum(len(record.output_ids) for record in records) / span_s if span_s else None
