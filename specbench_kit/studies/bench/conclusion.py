"""From the records on disk to the summary, report and exports of each run, and to the report that
compares them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Protocol

from msgspec import structs, to_builtins

from specbench_kit.core.progress import CountCallback, untold
from specbench_kit.decoding.detail import DetailCollector
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.comparison import Decode, compare
from specbench_kit.metrics.result import RunResult
from specbench_kit.metrics.rounds import RequestGroup, RunRequests
from specbench_kit.metrics.run_data import BenchmarkRun, measured_summary
from specbench_kit.metrics.run_summary import ExactMatch, OutputVerdicts, RunSummary
from specbench_kit.metrics.setting import method_label
from specbench_kit.metrics.thinking import summarise_thinking
from specbench_kit.metrics.tool_calls import ToolAnswers
from specbench_kit.reports import render_markdown
from specbench_kit.reports.comparison.files import ALL
from specbench_kit.reports.run import report
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.timeline import token_view as token_pages
from specbench_kit.reports.timeline.timeline import chrome_trace, write_pictures
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunDocument
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.line_file import RESUME_HINT
from specbench_kit.studies.bench.kind import BENCH, BenchStudy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKDOWN_ONLY = ("md",)


class OutputJudge(Protocol):
    """Judges a run's outputs."""

    def judge(
        self,
        run: RunDocument,
        method: Method,
        records: Sequence[RequestRecord],
        baseline: Sequence[RequestRecord],
    ) -> OutputVerdicts:
        """Return what is found of the outputs."""


class AnswerJudge(Protocol):
    """Judges a run's answers by reference answers."""

    def judge(
        self, records: Sequence[RequestRecord], baseline: Sequence[RequestRecord]
    ) -> ExactMatch | None:
        """Return how many answers match; None if no prompt has a reference answer."""


class RequestReader:
    """Reads the requests of runs; the baseline of methods that ran together is read, and measured,
    once.
    """

    def __init__(self) -> None:
        self._plain: dict[str, RequestGroup] = {}

    def __call__(self, run: RunDirectory) -> RunRequests:
        """Return the requests of a run."""
        path = run.path / "baseline.jsonl"
        content = provenance.hash_file(path) if path.is_file() else ""
        if content not in self._plain:
            self._plain[content] = RequestGroup(run.baseline_records())
        return RunRequests(RequestGroup(run.records()), self._plain[content])


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One run with its summary, and its requests if they are at hand."""

    directory: RunDirectory
    summary: RunSummary
    requests: RunRequests | None = None

    def run(self, read: RequestReader | None = None) -> BenchmarkRun:
        """Return the run with its requests, which are read from its files unless they are at
        hand.
        """
        directory = self.directory
        known = self.requests or (read or RequestReader())(directory)
        return BenchmarkRun(
            directory.path, directory.document, known.group, known.plain, self.summary
        )

    def study(self, decode: Decode | None = None) -> BenchStudy | None:
        """Return the run as a study; None if none of its requests is stored."""
        run = self.run()
        return BENCH.study(compare([run], decode=decode)) if run.records else None


def judge_and_write(
    runs: Sequence[RunDirectory],
    output_judge: OutputJudge,
    decode: Decode | None,
    read: Callable[[RunDirectory], RunRequests] | None = None,
    answer_judge: AnswerJudge | None = None,
    tool_answers: ToolAnswers | None = None,
    progress: CountCallback = untold,
) -> list[Conclusion]:
    """Write report and summary of every run, whose requests `read` returns instead of its files;
    progress counts runs.

    Reports of several runs are text only, since figures and HTML page belong to the report that
    compares the runs.
    """
    read = read or RequestReader()
    methods = [parse_method(str(run.document.method)) for run in runs]
    oracles = (run for run, method in zip(runs, methods, strict=True) if method.needs_reference)
    oracle = next((_throughput(run, read(run).group) for run in oracles), None)
    conclusions = []
    formats = ALL if sum(run.has_begun for run in runs) < 2 else MARKDOWN_ONLY
    for done, (run, method) in enumerate(zip(runs, methods, strict=True)):
        progress(done, len(runs))
        requests = read(run)
        records, baseline = requests.records, requests.baseline
        verdicts = output_judge.judge(run.document, method, records, baseline)
        answers = answer_judge.judge(records, baseline) if answer_judge else None
        # A pipeline commits in steps, of which no one says which token was drafted.
        has_rounds = not method.pipeline
        summary = structs.replace(
            measured_summary(run.document, requests, method, oracle),
            tool_calls=tool_answers.summarise(records) if tool_answers and has_rounds else None,
            thinking=summarise_thinking(records, decode) if decode and has_rounds else None,
            lossless=verdicts.lossless,
            sampling=verdicts.sampling,
            exact_match=answers,
        )
        conclusions.append(Conclusion(run, summary, requests))
        write_report(conclusions[-1], formats, decode)
    for conclusion in conclusions:  # last, because the summary marks a run as complete
        conclusion.directory.write_summary(conclusion.summary)
    return conclusions


def write_report(
    conclusion: Conclusion,
    formats: Sequence[str] = ALL,
    decode: Decode | None = None,
) -> None:
    """Write a run's report into its own folder."""
    directory = conclusion.directory
    study = conclusion.study(decode)
    if study is not None:
        BENCH.pages(study, directory.path, formats, RESUME_HINT)
    else:
        nothing = RunResult(
            name=directory.path.name, fields=directory.document, summary=conclusion.summary
        )
        directory.write_report("report.md", render_markdown.render(report.build(nothing)))


def _throughput(run: RunDirectory, group: RequestGroup) -> float | None:
    """Return tokens per second over all requests; None if an interruption makes the clock
    meaningless.
    """
    span_s = None if run.document.spans_interruption else group.makespan_s
    return sum(len(record.output_ids) for record in group.records) / span_s if span_s else None


def report_jointly(out: Path, conclusions: Sequence[Conclusion]) -> BenchStudy | None:
    """Write the report into a new folder below `out`; return None if fewer than two runs have any
    records.
    """
    begun = [
        one for one in conclusions if one.summary.requests.finished or one.summary.requests.failed
    ]
    if len(begun) < 2:
        return None
    # force: an interruption can leave runs on different prompts; the report then says so.
    read = RequestReader()
    comparison = compare([one.run(read) for one in begun], force=True)
    datasets = "-".join(
        dict.fromkeys(str(conclusion.directory.document.dataset.name) for conclusion in conclusions)
    )
    folder = unused_folder(
        out, BENCH.command, datasets, {"runs": [one.directory.path.name for one in begun]}
    )
    study = BENCH.study(comparison, folder)
    hint = "the runs themselves are complete; make room, then write the report with skit report"
    BENCH.pages(study, folder, ALL, hint)
    return study


TIMELINE = "timeline.json"
PLOTS = "plots"
TOKENS = "tokens"
MAX_PAGES = 100
"""Requests that get a page: the first ones that finish."""


class RunExports:
    """Observes the decoding loop of one method and writes the enabled exports into its run
    directory.
    """

    def __init__(self, run: RunDirectory, *, timeline: bool, token_view: bool) -> None:
        self.timeline = Timeline() if timeline else None
        self._run = run
        self._details = DetailCollector() if token_view else None
        self._detailed = {detail.request_id for detail in run.details()} if token_view else set()

    def watch(self, loop: Loop) -> None:
        """Record the loop's rounds from now on."""
        loop.clock.timeline = self.timeline
        if self._details is not None:
            loop.on_round = self._details.note

    def keep(self, record: RequestRecord) -> None:
        """Store the draft trees of a finished request's rounds."""
        if self._details is None:
            return
        detail = self._details.take(record.request_id)
        is_new = not record.repeat and detail.request_id not in self._detailed
        if detail.rounds and is_new and len(self._detailed) < MAX_PAGES:
            self._run.append_detail(detail)
            self._detailed.add(detail.request_id)

    def write(self, tokenizer: Optional["PreTrainedTokenizerBase"] = None) -> None:
        """Write all exports; a timeline covers what was decoded since the run was last resumed."""
        run = self._run.document
        if self.timeline is not None and self.timeline.spans:
            method = method_label(run)
            time = time_kind(run)
            trace = chrome_trace(
                self.timeline, {"method": method, "dataset": run.dataset.name, "time": time}
            )
            self._run.write_report(
                TIMELINE, json.dumps(to_builtins(trace), ensure_ascii=False, allow_nan=False) + "\n"
            )
            write_pictures(self._run.folder(PLOTS), self.timeline, f"{method}, {time}")
        if self._details is None:
            return
        records = self._run.records()
        show = token_pages.token_text(tokenizer)
        pages = token_pages.pages(records, self._run.details())
        for page in pages:
            assert tokenizer is not None  # pages exist only after decoding with models
            prompt = tokenizer.decode(page.record.prompt_ids)
            self._run.write_report(
                f"{TOKENS}/{page.name}", token_pages.render_page(run, page, show, prompt)
            )
        finished = sum(record.finish_reason != "error" for record in records)
        self._run.write_report(
            f"{TOKENS}/{token_pages.INDEX}", token_pages.render_index(run, pages, finished)
        )
