"""The run that a drafter inside an engine leaves: a folder like that of a benchmark.

Also here: the time that a policy and its drafter take inside an engine, apart from the engine's own steps.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.clock import Phase
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.runs.directory import RunDirectory

MS = 1e3


@dataclass(slots=True)
class Overhead:
    """Sums over all calls; `total_s` is the time inside of the drafter, `engine_s` that of the engine's steps."""

    calls: int = 0
    rounds: int = 0
    drafted: int = 0
    submitted: int = 0
    accepted: int = 0
    policy_s: float = 0.0
    draft_s: float = 0.0
    total_s: float = 0.0
    engine_s: float = 0.0

    def add_phases(self, seconds: Mapping[Phase, float]) -> None:
        """Add the seconds of one call by phase; the prefill of the draft model counts as drafting."""
        self.policy_s += seconds.get("policy", 0.0)
        self.draft_s += seconds.get("draft", 0.0) + seconds.get("prefill", 0.0)
        self.engine_s += seconds.get("verify", 0.0)

    def document(self) -> dict[str, object]:
        """Return the sums as `run.json` holds them."""
        return asdict(self)

    def line(self, engine: str) -> str:
        """Return the sums in one line for people."""
        if not self.calls:
            return f"skit in {engine}: nothing was drafted"
        policy, draft, total, step = (
            seconds / self.calls * MS for seconds in (self.policy_s, self.draft_s, self.total_s, self.engine_s)
        )
        share = total / (total + step) if total + step else 0.0
        return (
            f"skit in {engine}: {self.calls} calls, {self.accepted} of {self.submitted} draft tokens accepted in "
            f"{self.rounds} rounds; per call {policy:.2f} ms policy, {draft:.2f} ms drafting and "
            f"{max(0.0, total - policy - draft):.2f} ms bookkeeping beside {step:.2f} ms of {engine} "
            f"({share:.1%} of the time)"
        )


ID_BYTES = 8


def request_id(prompt_ids: list[int]) -> str:
    """Return the id of a request, which an engine does not name: a hash of its prompt's tokens."""
    return blake2b(repr(prompt_ids).encode(), digest_size=ID_BYTES).hexdigest()


@dataclass
class RunRecorder:
    """Writes the first `most` requests to a run directory in `out`; does nothing without one.

    The folder is made with the first request, so that an engine that is never used leaves nothing.
    """

    out: Path | None
    description: JsonObject
    most: int
    overhead: Overhead
    recorded: int = 0
    _run: RunDirectory | None = None
    _repeats: Counter[str] = field(default_factory=Counter)
    _process: int = field(default_factory=os.getpid)

    def add(self, record: RequestRecord) -> None:
        """Add a finished request; a prompt that comes again is another repeat of the same request."""
        if self.out is None or self.recorded >= self.most:
            return
        record.request_id = request_id(record.prompt_ids)
        record.repeat = self._repeats[record.request_id]
        self._repeats[record.request_id] += 1
        if self._run is None:
            self._run = RunDirectory.create(self.out, self.description)
        self._run.append(record)
        self.recorded += 1
        if self.recorded & (self.recorded - 1) == 0:  # after 1, 2, 4, 8, ... requests, should the engine be killed
            self._run.amend(overhead=self.overhead.document())

    def close(self) -> Path | None:
        """Write the summary, which marks the run as complete, and return its folder."""
        # A process that the engine forked inherits the recorder, and must not conclude the run of its parent.
        if self._run is None or os.getpid() != self._process:
            return None
        run = self._run
        records = self._run.records()
        batch_size = int(run.run["config"]["batch_size"])
        run.amend(overhead=self.overhead.document(), requests=len(records))
        summary = {
            "method": run.run["method"],
            "partial": False,
            "requests": {"planned": len(records), "finished": len(records), "failed": 0},
            "overlaps": False,
            **summarise_run(records, None, None, batch_size=batch_size),
            "pipeline": None,
            "lossless": None,
        }
        run.write_summary(summary)
        self._run = None
        return run.path
