"""A bench whose target is in this process, or in processes of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.processes.stages import ProcessStages
from specbench_kit.deployments.assembly import hidden_states, local_loop
from specbench_kit.methods.base import Method
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.placement import Placement
from specbench_kit.profilers.subject import random_model
from specbench_kit.runs.document import RunFields
from specbench_kit.studies.bench.judges import LocalOutputJudge
from specbench_kit.studies.bench.preparation import needed_models
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench


def load_local_pair(settings: BenchSettings) -> Pair:
    """Load the target and the models that the methods draft with."""
    needed = needed_models(settings)
    return load_pair(
        settings.target,
        settings.draft if DRAFT in needed else None,
        others=[name for name in needed if name != DRAFT],
        device=settings.device,
        dtype=settings.dtype,
        executor=settings.executor,
        placement=Placement(settings.device_map, settings.max_memory),
        # What a deployment models takes no time of this machine.
        random_model=random_model if settings.deployment is None else None,
    )


@dataclass(eq=False)
class LocalBench(Workbench):
    """A bench whose target this machine computes; `stages` are the processes of a pipeline, if
    there are any.
    """

    stages: ProcessStages | None = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stages = self._start_stages() if self.settings.launch == "processes" else None

    @cached_property
    def output_judge(self) -> LocalOutputJudge:
        """Return the judge that computes again what the target decoded."""
        allowed = None if self.settings.constraint is None else self.prompts.grammars.allowed
        return LocalOutputJudge(self.pair, self.runners["target"], allowed)

    @property
    def worker_clock(self) -> Callable[[], float] | None:
        """Return a function that reads the processor seconds of the pipeline's processes.

        None if another program started them, so that they cannot be observed.
        """
        if self.stages is None:
            return lambda: 0.0
        return self.probe.children_s if self.stages.are_children else None

    def loop(self, method: Method, started_s: float = 0.0) -> Loop:
        """Return a decoding loop of the method whose clock starts at `started_s`."""
        return local_loop(
            method,
            self.runners["target"],
            self.runners.get("draft"),
            others={name: self.runners[name] for name in self.pair.others},
            setup=self.setup(started_s),
            deployment=self.settings.deployment,
            ends=list(self.ends.values()),
            stages=self.stages,
        )

    def describe_hidden_states(self, method: Method) -> RunFields:
        """Return the part `hidden_states` of `run.json` if verdicts carry hidden states over the
        deployment's link.
        """
        if self.settings.deployment is None:
            return {}
        states = hidden_states(
            method, self.settings.deployment, self.runners["target"], self.runners
        )
        return (
            {"hidden_states": structs.asdict(states)} if states and states.bytes_per_token else {}
        )

    def close(self) -> None:
        """End the processes of a pipeline."""
        if self.stages is not None:
            self.stages.close()

    def _start_stages(self) -> ProcessStages:
        """Start the processes that all methods with a pipeline share; this works since the methods
        take turns.
        """
        methods = self.prepared.methods.values()
        counts = {method.pipeline.stages for method in methods if method.pipeline}
        if not counts and any(method.overlaps for method in methods):
            counts = {1}  # the whole target in one process, while this process drafts
        if len(counts) != 1:
            stages = (
                f"these have {' and '.join(map(str, sorted(counts)))}"
                if counts
                else "none of these has any"
            )
            raise SkitError(f"--launch processes needs methods with one number of stages: {stages}")
        capacity = self.runners["target"].capacity
        slots = self.settings.batch_size * self.prepared.turns
        sizes = {"slots": slots, "capacity": capacity, "vocabulary": self.pair.vocabulary}
        return ProcessStages(counts.pop(), self.pair.target, sizes)
