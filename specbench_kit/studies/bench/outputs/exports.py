"""Optional exports of a run: its timeline, and an HTML page per request that shows where each token came from."""

import json
from typing import TYPE_CHECKING, Optional

from specbench_kit.decoding.detail import DetailCollector
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.metrics.setting import method_label
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.timeline import token_view as token_pages
from specbench_kit.reports.timeline.timeline import chrome_trace, write_pictures
from specbench_kit.runs.directory import RunDirectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TIMELINE, PLOTS, TOKENS = "timeline.json", "plots", "tokens"
MAX_PAGES = 100
"""Requests that get a page: the first ones that finish."""


class RunExports:
    """Observes the decoding loop of one method and writes the enabled exports into its run directory."""

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
        run = self._run.run
        if self.timeline is not None and self.timeline.spans:
            method, time = method_label(run), time_kind(run)
            trace = chrome_trace(self.timeline, {"method": method, "dataset": run["dataset"]["name"], "time": time})
            self._run.write_report(TIMELINE, json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n")
            write_pictures(self._run.folder(PLOTS), self.timeline, f"{method}, {time}")
        if self._details is None:
            return
        records = self._run.records()
        show, pages = token_pages.token_text(tokenizer), token_pages.pages(records, self._run.details())
        for page in pages:
            assert tokenizer is not None  # pages exist only after decoding with models
            prompt = tokenizer.decode(page.record.prompt_ids)
            self._run.write_report(f"{TOKENS}/{page.name}", token_pages.render_page(run, page, show, prompt))
        finished = sum(record.finish_reason != "error" for record in records)
        self._run.write_report(f"{TOKENS}/{token_pages.INDEX}", token_pages.render_index(run, pages, finished))
