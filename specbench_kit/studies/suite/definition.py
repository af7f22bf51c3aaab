"""A suite as its file defines it: which requests of which pair are decoded under which deployment,
checked by hash.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from specbench_kit.core.errors import SkitError, did_you_mean, require
from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import digest
from specbench_kit.deployments.loading import Definition
from specbench_kit.profilers import cards
from specbench_kit.runs import provenance
from specbench_kit.serving.slo import parse_slo
from specbench_kit.studies.suite.scores import VERSION, SuiteCell, SuiteFleet
from specbench_kit.traces.trace import RequestTrace, TraceFile

if TYPE_CHECKING:
    from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts

FOLDER = Path(__file__).parent
FILE = "suite.toml"
PROMPTS = "prompts.jsonl"
"""The prompts of the recorded pair as text, for running servers."""
RESULTS = "results"
QUICK_STEP = 5
"""A quick run takes every fifth request of a trace, and every fifth of a synthetic pair's."""


class SuitePair(Struct, frozen=True, forbid_unknown_fields=True):
    """A pair of models: a bundled trace by name and hash, or the options of a synthetic draft
    model.

    `prompts` is the digest of the trace's dataset. `tuning` names the trace on which policies may be trained and tuned.
    """

    words: str
    source: str = ""
    trace: str = ""
    sha256: str = ""
    prompts: str = ""
    tuning: str = ""
    tuning_sha256: str = ""
    draft: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    temperature: float = 0.0


class SuiteDeployment(Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment in a file beside the suite's, with fields replaced, and the digest of all that
    decides its time.
    """

    words: str
    file: str
    digest: str
    set: dict[str, float] = {}


class CellGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Cells: each of these pairs under each of these deployments at each of these batch sizes."""

    pairs: tuple[str, ...]
    deployments: tuple[str, ...]
    batch_sizes: tuple[int, ...]


class FleetTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices at one server: each decodes requests of a pair under a deployment, and thinks
    `think_s` in between.

    They were promised token speeds (`slo`), and the server has room for `kv_tokens`. Each of the
    `loads` is a number of devices and is simulated with every seed; a load is served if at most
    `late_share` of the responses break their promise. What is said of one load is said of
    `devices`, one of the loads.
    """

    words: str
    pair: str
    deployment: str
    devices: int
    loads: tuple[int, ...]
    slo: str
    late_share: float
    think_s: float
    ramp_s: float
    warmup_s: float
    duration_s: float
    seeds: int
    scheduler: str
    kv_tokens: int


class SuiteTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `suite.toml`.

    `policies` have rows beside those of the kit with their default options, and the `bounds` among them say how fast
    an oracle would be. `metrics` is the version of the metrics' definitions, and `left_out` what the suite lacks.
    """

    name: str
    metrics: int
    seed: int
    summary: str
    left_out: tuple[str, ...]
    policies: tuple[str, ...]
    bounds: tuple[str, ...]
    pairs: dict[str, SuitePair]
    deployments: dict[str, SuiteDeployment]
    cells: tuple[CellGroup, ...]
    fleets: dict[str, FleetTable] = {}


@dataclass(frozen=True)
class Suite:
    """A suite in its folder; a `quick` one takes fewer requests, and its results compare with
    nothing.
    """

    folder: Path
    table: SuiteTable
    quick: bool = False

    @cached_property
    def sha256(self) -> str:
        """The hash of the suite's file, which holds the hashes of all that it reads."""
        return provenance.hash_file(self.folder / FILE)

    @cached_property
    def cells(self) -> dict[str, SuiteCell]:
        """The cells by name, such as `coder/phone-40/8`."""
        return {cell.name: cell for cell in self._cells()}

    @cached_property
    def fleets(self) -> dict[str, SuiteFleet]:
        """The fleets by name, such as `phones`."""
        return {name: self._fleet(name, table) for name, table in self.table.fleets.items()}

    @property
    def recorded_pair(self) -> str:
        """The name of the recorded pair by which policies are ranked, the first one."""
        return next(name for name, pair in self.table.pairs.items() if pair.trace)

    def trace(self, pair: str) -> TraceFile:
        """Return the trace of a pair; raise SkitError if it is not the one that the suite was made
        for.
        """
        table = self.table.pairs[pair]
        trace = TraceFile(Path(table.trace))
        changed = f"the trace {table.trace} is not the one of suite {self.table.name}: install specbench-kit again"
        require(provenance.hash_file(trace.path) == table.sha256, changed)
        require(trace.recording.dataset.digest == table.prompts, changed)
        return trace

    def requests(self, pair: str) -> list[RequestTrace]:
        """Return the recorded requests of a pair that are decoded, which are read once."""
        return _requests(self.trace(pair), self.quick)

    def prompts(self, pair: str, batch_size: int) -> "SyntheticPrompts":
        """Return the prompts of a synthetic pair."""
        # Models are needed to decode alone, not to read results.
        from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts

        table = self.table.pairs[pair]
        requests = -(-table.requests // QUICK_STEP) if self.quick else table.requests
        return SyntheticPrompts(
            requests=requests,
            prompt_tokens=table.prompt_tokens,
            output_tokens=table.output_tokens,
            batch_size=batch_size,
            temperature=table.temperature,
            seed=self.table.seed,
        )

    def deployment(self, name: str) -> Deployment:
        """Return a deployment; raise SkitError if its time is not what it was when the suite was
        made.
        """
        table = self.table.deployments[name]
        path = self.folder / table.file
        deployment = (
            Definition(path, f"{self.table.name}/{name}", cards.read_toml(path))
            .replace(table.set)
            .build()
        )
        require(
            digest(deployment) == table.digest,
            f"the deployment {name} is not the one of suite {self.table.name}: install specbench-kit again",
        )
        return deployment

    def _fleet(self, name: str, table: FleetTable) -> SuiteFleet:
        slo = parse_slo(table.slo)
        return SuiteFleet(
            name,
            table.pair,
            table.deployment,
            table.words,
            table.devices,
            table.loads,
            tuple(zip(slo.names, slo.speeds, strict=True)),
            table.late_share,
        )

    def _cells(self) -> Iterator[SuiteCell]:
        for group in self.table.cells:
            for pair in group.pairs:
                if self.table.pairs[pair].trace:
                    tasks = tuple(request.category for request in self.requests(pair))
                    dialogues = _dialogues(self.requests(pair))
                else:
                    tasks = ("synthetic",) * self.prompts(pair, 1).requests
                    dialogues = tuple(range(len(tasks)))
                for name in group.deployments:
                    words = self.table.deployments[name].words
                    rtt_s = self.deployment(name).link.rtt_s
                    for size in group.batch_sizes:
                        is_main = pair == self.recorded_pair
                        cell = f"{pair}/{name}/{size}"
                        yield SuiteCell(
                            cell, pair, name, words, rtt_s, size, tasks, dialogues, is_main
                        )


@cache
def load(name: str, quick: bool = False) -> Suite:
    """Return a suite of the kit by its name; raise SkitError if there is none, or if its metrics
    are others.
    """
    names = suite_names()
    if name not in names:
        raise SkitError(f"no suite '{name}'{did_you_mean(name, names)}; known: {', '.join(names)}")
    path = FOLDER / name / FILE
    table = cards.parse_table(SuiteTable, cards.read_toml(path), str(path))
    require(
        table.metrics == VERSION,
        f"suite {name} goes by version {table.metrics} of its metrics, and this kit has version {VERSION}",
    )
    return Suite(path.parent, table, quick)


def suite_names() -> list[str]:
    """Return the names of all suites of the kit."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{FILE}"))


def _dialogues(requests: Sequence[RequestTrace]) -> tuple[int, ...]:
    dialogues = Dialogues()
    return tuple(
        dialogues.index(turn.request_id, turn.prompt_ids, turn.output_ids) for turn in requests
    )


_read: dict[tuple[Path, bool], list[RequestTrace]] = {}


def _requests(trace: TraceFile, quick: bool) -> list[RequestTrace]:
    key = trace.path, quick
    if key not in _read:
        _read[key] = list(trace)[:: QUICK_STEP if quick else 1]
    return _read[key]
