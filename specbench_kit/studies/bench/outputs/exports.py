"""What a run leaves beside its records where that is asked for: its timeline, and a page per request of its tokens."""

import json
from typing import Any

from specbench_kit.decoding.detail import DetailCollector
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.metrics.setting import method_label
from specbench_kit.reports.timeline import token_view as token_pages
from specbench_kit.reports.timeline.timeline import chrome_trace, write_pictures
from specbench_kit.reports.writing.wording import time_kind
from specbench_kit.runs.directory import RunDirectory

TIMELINE, PLOTS, TOKENS = "timeline.json", "plots", "tokens"
MOST_PAGES = 100
"""Of the token view: the first requests to finish."""


class RunExports:
    """Watches the loop of one method and writes what was asked for into its run directory."""

    def __init__(self, run: RunDirectory, *, timeline: bool, token_view: bool) -> None:
        self.timeline = Timeline() if timeline else None
        self._run = run
        self._details = DetailCollector() if token_view else None
        self._kept = {one.request_id for one in run.details()} if token_view else set()

    def watch(self, loop: Loop) -> None:
        """Have the loop's rounds recorded from here on."""
        loop.clock.timeline = self.timeline
        if self._details is not None:
            loop.on_round = self._details.note

    def keep(self, record: RequestRecord) -> None:
        """A request has finished: keep its rounds' trees."""
        if self._details is None:
            return
        detail = self._details.take(record.request_id)
        is_new = not record.repeat and detail.request_id not in self._kept
        if detail.rounds and is_new and len(self._kept) < MOST_PAGES:
            self._run.append_detail(detail)
            self._kept.add(detail.request_id)

    def write(self, tokenizer: Any = None) -> None:
        """Write everything; a timeline holds what was decoded since the run was last resumed."""
        if self.timeline is not None and self.timeline.spans:
            self._write_timeline(self.timeline)
        if self._details is not None:
            self._write_pages(tokenizer)

    def _write_timeline(self, timeline: Timeline) -> None:
        run, where = self._run.run, time_kind(self._run.run)
        method = method_label(run)
        trace = chrome_trace(timeline, {"method": method, "dataset": run["dataset"]["name"], "time": where})
        self._run.write_report(TIMELINE, json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n")
        write_pictures(self._run.folder(PLOTS), timeline, f"{method}, {where}")

    def _write_pages(self, tokenizer: Any) -> None:
        run, records = self._run.run, self._run.records()
        show, pages = token_pages.token_text(tokenizer), token_pages.pages(records, self._run.details())
        for page in pages:
            prompt = tokenizer.decode(page.record.prompt_ids)
            self._run.write_report(f"{TOKENS}/{page.name}", token_pages.render_page(run, page, show, prompt))
        finished = sum(record.finish_reason != "error" for record in records)
        self._run.write_report(f"{TOKENS}/{token_pages.INDEX}", token_pages.render_index(run, pages, finished))
