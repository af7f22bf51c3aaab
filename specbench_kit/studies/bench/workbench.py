"""What the benchmarks of one command share: a pair of models, the methods made ready, and room for all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.processes.stages import ProcessStages
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import hidden_states, live_engine, require_stages
from specbench_kit.live.assembly import remote_engine
from specbench_kit.live.pair import load_drafts
from specbench_kit.live.served import Server, Way, reach
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import locate
from specbench_kit.models.head_library import HEAD, find, is_missing_head
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.placement import Placement
from specbench_kit.models.runner import Runner
from specbench_kit.runs import provenance
from specbench_kit.runs.machine.probe import Probe, probe_here
from specbench_kit.studies.bench.choice import chosen, usable
from specbench_kit.studies.bench.conversations import most_tokens
from specbench_kit.studies.bench.lanes import BASELINE
from specbench_kit.studies.bench.latencies import MeasuredEnvironment
from specbench_kit.studies.bench.outputs.evidence import LocalOutputJudge, ServedOutputJudge
from specbench_kit.studies.bench.seen_prompts import without_seen
from specbench_kit.studies.bench.settings import BenchSettings


class Workbench:
    """`methods` are those that can run here, by spec; `left_out` says why others of `all` cannot.

    `lanes` are those that take turns: the methods, after the baseline where that is wanted or read. `datasets` are
    without the prompts that methods learned from, where these are left out; `heads` are folders by name.
    """

    def __init__(
        self,
        settings: BenchSettings,
        datasets: Sequence[LoadedDataset],
        report: ProgressCallback = lambda *_: None,
        probe: Probe | None = None,
    ) -> None:
        self.settings = settings
        self.probe = probe or probe_here()
        self.server, self.pair = _load(settings)
        self.models = self.pair.describe(provenance.hash_model)
        self.surroundings = MeasuredEnvironment(settings, self.pair, self.models, report, self.probe)
        self.methods, self.left_out = usable(settings, self._prepare)
        needs_baseline = settings.baseline or any(method.needs_reference for method in self.methods.values())
        self.lanes = ({BASELINE: parse_method(BASELINE)} if needs_baseline else {}) | self.methods
        self.heads = {n: Path(o.source.location) for n, o in self.pair.others.items() if n.startswith(HEAD)}
        self.datasets = [without_seen(one, self.methods.values(), settings, self.heads) for one in datasets]
        self.runners = self._make_runners(self.datasets)
        self.evidence = self._evidence()
        self.stages = self._start_stages() if settings.launch == "processes" else None

    def engine(self, method: Method, started_s: float = 0.0) -> Loop:
        """The method's loop, whose clock goes on at `started_s`."""
        settings = self.settings
        if self.server is not None:
            return self._remote_engine(method, self.server, started_s)
        return live_engine(
            method,
            self.runners["target"],
            self.runners.get("draft"),
            others={name: self.runners[name] for name in self.pair.others},
            sampler=Sampler(settings.temperature, settings.top_p, settings.top_k),
            seed=settings.seed,
            eos_ids=self.pair.eos_ids,
            batch_size=settings.batch_size,
            started_s=started_s,
            deployment=settings.deployment,
            stages=self.stages,
            draft_top_n=settings.draft_top_n,
        )

    def _remote_engine(self, method: Method, server: Server, started_s: float) -> Loop:
        settings = self.settings
        sampler = Sampler(settings.temperature, settings.top_p, settings.top_k)
        return remote_engine(
            method,
            self.runners,
            lambda clock: server.verifier(sampler, settings.seed, clock),
            sampler=sampler,
            seed=settings.seed,
            eos_ids=self.pair.eos_ids,
            batch_size=settings.batch_size,
            capacity=min([server.stated.context, *(runner.capacity for runner in self.runners.values())]),
            started_s=started_s,
            draft_top_n=settings.draft_top_n,
        )

    def _evidence(self) -> "LocalOutputJudge | ServedOutputJudge":
        if self.server is not None:
            return ServedOutputJudge(self.server.stated.bitwise)
        return LocalOutputJudge(self.pair, self.runners["target"])

    def sent(self, method: Method) -> dict[str, Any]:
        """What crosses the deployment's link with the verdicts, if anything: `hidden_states` of `run.json`."""
        if self.settings.deployment is None:
            return {}
        states = hidden_states(method, self.settings.deployment, self.runners["target"], self.runners)
        return {"hidden_states": states._asdict()} if states and states.bytes_per_token else {}

    @property
    def others(self) -> Callable[[], float] | None:
        """Tells the processor seconds of the pipeline's processes; nobody can where another program started them, or
        where a server works."""
        if self.server is not None:
            return None
        if self.stages is None:
            return lambda: 0.0
        return self.probe.children_s if self.stages.are_children else None

    def close(self) -> None:
        """End the processes of a pipeline, and the way to a server."""
        if self.server is not None:
            self.server.close()
        if self.stages is not None:
            self.stages.close()

    def _prepare(self, spec: str) -> Method:
        for name in parse_method(spec).drafting.models:
            if name.startswith(HEAD):
                find(name, self.pair.target.source)
        method = parse_method(spec).prepare(self.surroundings.environment)
        if self.settings.deployment is not None:
            require_stages(method, self.settings.deployment)
        return method

    def _make_runners(self, datasets: Sequence[LoadedDataset]) -> dict[str, Runner]:
        """Slots for the batches of all methods."""
        most = max(len(dataset.prompts) for dataset in datasets)
        slots = min(self.settings.batch_size, most) * len(self.lanes)
        prompts = [prompt for dataset in datasets for prompt in dataset.prompts]
        longest = max(most_tokens(prompt, self.pair.tokenizer, self.settings.max_new_tokens) for prompt in prompts)
        in_flight = max((method.pipeline.nodes for method in self.methods.values() if method.pipeline), default=0)
        return self.pair.all_runners(slots, longest + in_flight)

    def _start_stages(self) -> ProcessStages:
        """The processes that all methods with a pipeline share, as they take turns."""
        counts = {method.pipeline.stages for method in self.methods.values() if method.pipeline}
        if not counts and any(method.overlaps for method in self.methods.values()):
            counts = {1}  # the whole target, beside which is drafted
        if len(counts) != 1:
            found = f"these have {' and '.join(map(str, sorted(counts)))}" if counts else "none of these has any"
            raise SkitError(f"--launch processes needs methods with one number of stages: {found}")
        capacity, slots = self.runners["target"].capacity, self.settings.batch_size * len(self.lanes)
        sizes = {"slots": slots, "capacity": capacity, "vocabulary": self.pair.vocabulary}
        return ProcessStages(counts.pop(), self.pair.target, sizes)


def _load(settings: BenchSettings) -> tuple[Server | None, Pair]:
    """The target, and those models that the methods' drafters forward; a head that nobody named may be missing."""
    specs, target = chosen(settings), locate(settings.target, "target")
    asked = [(name, named) for spec, named in specs.items() for name in parse_method(spec).drafting.models]
    needed = dict.fromkeys(name for name, named in asked if named or not is_missing_head(name, target))
    place = {"device": settings.device, "dtype": settings.dtype}
    if settings.server is not None:
        drafts = load_drafts(settings.draft, list(needed), **place)
        way = Way(settings.server, settings.server_token, settings.server_ca, settings.link)
        server = reach(way, drafts)
        return server, drafts.beside(server.stated)
    draft = settings.draft if DRAFT in needed else None
    others = [name for name in needed if name != DRAFT]
    placement = Placement(settings.device_map, settings.max_memory)
    return None, load_pair(settings.target, draft, others=others, **place, placement=placement)
