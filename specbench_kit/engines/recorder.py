"""The run that a drafter inside an engine leaves: a folder like that of a benchmark."""

import os
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.engines.overhead import Overhead
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.runs.directory import RunDirectory

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
        run, records = self._run, self._run.records()
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
