"""What the benchmarks of one command share, wherever their target is: models, prepared methods,
prompts, and room for them all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specbench_kit.core.errors import MethodError
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import corners
from specbench_kit.methods.base import Method
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.pair import Pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.studies.bench.conclusion import OutputJudge
from specbench_kit.studies.bench.measured_environment import MeasuredEnvironment
from specbench_kit.studies.bench.preparation import BenchPrompts, PreparedMethods, sampler_of
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.unseen_prompts import seen_notes


@dataclass(eq=False)
class Workbench(ABC):
    """Models, methods and datasets, ready to decode. `models` describes those of the `pair`."""

    settings: BenchSettings
    probe: Probe
    pair: Pair
    models: Mapping[str, ModelDescription]
    measured: MeasuredEnvironment
    prepared: PreparedMethods
    prompts: BenchPrompts
    runners: dict[str, Runner] = field(init=False)
    """Runners with slots for all methods: a method's batch stays in flight during the turns of
    others.
    """
    broken: dict[str, MethodError] = field(init=False, default_factory=dict)
    """The first error of each method whose policy failed; the others went on."""

    def __post_init__(self) -> None:
        slots = min(self.settings.batch_size, self.prompts.largest) * self.prepared.turns
        self.runners = self.pair.all_runners(slots, self.prompts.longest)

    @property
    @abstractmethod
    def output_judge(self) -> OutputJudge:
        """Return the judge of the outputs of all runs."""

    @property
    @abstractmethod
    def worker_clock(self) -> Callable[[], float] | None:
        """Return a function that reads the processor seconds of the processes that work for this
        one; None if they cannot be observed.
        """

    @abstractmethod
    def loop(self, method: Method, started_s: float = 0.0) -> Loop:
        """Return a decoding loop of the method whose clock starts at `started_s`."""

    @abstractmethod
    def close(self) -> None:
        """End what works for this process."""

    @abstractmethod
    def describe_hidden_states(self, method: Method) -> RunFields:
        """Return the part `hidden_states` of `run.json` if verdicts carry hidden states over a
        link.
        """

    def server_only_loop(self, spec: str, started_s: float = 0.0) -> Loop | None:
        """Return the loop over responses that a server decodes by itself with a method; None if
        none does.
        """
        return None

    def describe_server(self) -> RunFields:
        """Return the parts of `run.json` about the server that holds the target, if one does."""
        return {}

    @property
    def reconnections(self) -> int:
        """Return how often the connection to a server was lost and found again."""
        return 0

    @property
    def notes(self) -> Sequence[str]:
        """Return lines for the user about the models."""
        note = self.pair.context_note(self.prompts.longest)
        return [note] if note else []

    @property
    def ends(self) -> dict[str, Deployment]:
        """Return the ends of the deployment's range, by name."""
        return dict(corners(self.settings.deployment)) if self.settings.deployment else {}

    @property
    def sampler(self) -> Sampler:
        """Return the sampler of the target's tokens."""
        return sampler_of(self.settings)

    def seen_notes(self) -> list[str]:
        """Return for each dataset that lost prompts how many and which, and the methods that were
        trained on them.
        """
        prompts = self.prompts
        return seen_notes(prompts.given, prompts.datasets, self.prepared.methods, prompts.drafts)

    def require_whole(self) -> None:
        """Raise MethodError for all policies that failed."""
        if self.broken:
            are_all = self.broken.keys() >= self.prepared.methods.keys()
            went_on = "" if are_all else "; the other methods went on"
            causes = [
                error.__cause__
                for error in self.broken.values()
                if isinstance(error.__cause__, Exception)
            ]
            cause = (
                ExceptionGroup("policies failed", causes)
                if len(causes) > 1
                else next(iter(causes), None)
            )
            raise MethodError("; ".join(map(str, self.broken.values())) + went_on) from cause

    def failures(self) -> dict[str, str]:
        """Return why the policy of a method failed, by spec."""
        return {spec: str(error) for spec, error in self.broken.items()}

    def setup(self, started_s: float) -> DecodingSetup:
        """Return what all decoding loops are made with."""
        settings = self.settings
        return DecodingSetup(
            sampler=self.sampler,
            seed=settings.seed,
            eos_ids=self.pair.eos_ids,
            batch_size=settings.batch_size,
            started_s=started_s,
            draft_top_n=settings.draft_top_n,
            lossy=settings.lossy,
            skip_forced=settings.skip_forced,
        )
