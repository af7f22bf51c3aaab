"""What is simulated: who asks for what, on which devices, under which promises."""

from dataclasses import dataclass, field
from math import isfinite

from specbench_kit.core.errors import SkitError, require
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method
from specbench_kit.serving.arrivals import ArrivalProcess, ClosedLoop
from specbench_kit.serving.fleet import DeviceKind
from specbench_kit.serving.lengths import Lengths, longest
from specbench_kit.serving.memory import UNLIMITED, KvCapacity
from specbench_kit.serving.network import PLAIN, Network
from specbench_kit.serving.round_sources import RoundSource
from specbench_kit.serving.schedulers.base import BatchLimits, Scheduler, parse_scheduler
from specbench_kit.serving.schedulers.estimator import RIGHT, EstimatorError
from specbench_kit.serving.slo import SloMix, budget_s, parse_slo
from specbench_kit.serving.systems.base import ServingSystem

DEFAULT_SLO = parse_slo("2")


@dataclass(frozen=True)
class Scenario:
    """Checked when made.

    `prompt_tokens` and `output_tokens` count where arrivals say nothing; where neither does, the lengths are the
    source's. `learned`: a predictor judges every drafted token. A server that drafts goes as far as the
    method `drafts_by` decides for the whole batch, or without one as far as each round says, and never beyond
    `longest_draft`. Its verifications scatter by `verify_cv`, deviation over mean. `scheduler` replaces the system's
    own. Until `warmup_s` nothing counts. Devices are of the kinds in `fleet`; where there are
    none, all have the deployment's drafter and link, and the source's rounds.
    """

    deployment: Deployment
    system: ServingSystem
    source: RoundSource
    devices: int
    slo: SloMix = DEFAULT_SLO
    arrivals: ArrivalProcess = field(default_factory=ClosedLoop)
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    memory: KvCapacity = UNLIMITED
    scheduler: str | None = None
    estimator: EstimatorError = RIGHT
    max_batch: int = 64
    learned: bool = False
    drafts_by: Method | None = None
    longest_draft: int | None = None
    duration_s: float = 600.0
    warmup_s: float = 60.0
    fleet: tuple[DeviceKind, ...] = ()
    network: Network = PLAIN
    verify_cv: float = 0.0

    def __post_init__(self) -> None:
        require(self.devices >= 1, f"a simulation needs at least 1 device, not {self.devices}")
        require(self.max_batch >= 1, f"a batch must hold at least 1 request, not {self.max_batch}")
        spans = isfinite(self.duration_s) and 0 <= self.warmup_s < self.duration_s
        require(
            spans,
            f"the warm-up of {self.warmup_s:g} s must end before the {self.duration_s:g} s that are simulated: "
            "give a longer --duration or a shorter --warm-up",
        )
        require(
            isfinite(self.verify_cv) and self.verify_cv >= 0,
            f"--verify-cv takes a share from 0 on, not {self.verify_cv:g}",
        )
        for name in ("prompt_tokens", "output_tokens"):
            length = getattr(self, name)
            require(length is None or longest(length) >= 1, f"{name} must be at least 1, not {length}")
        if self.prompt_tokens is not None and self.output_tokens is not None:
            self.check_lengths(longest(self.prompt_tokens), longest(self.output_tokens))
        for name, speed in zip(self.slo.names, self.slo.speeds, strict=True):
            self._check_slo(name, speed)

    @property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """Of devices."""
        return self.fleet or (DeviceKind(self.deployment.name, 1.0, self.deployment, self.source),)

    @property
    def _longest(self) -> int:
        return max(kind.source.typical.longest for kind in self.kinds)

    def make_scheduler(self) -> Scheduler:
        """The system's own, or the one that replaces it."""
        return parse_scheduler(self.scheduler or self.system.scheduler)

    def limits(self) -> BatchLimits:
        """The largest batch; what the server may draft for it has to fit too."""
        drafted = self.max_batch * self._longest if self.system.drafting == "server" else 0
        return BatchLimits(self.max_batch, self.memory.tokens - drafted)

    @property
    def longest_response(self) -> float:
        """Tokens of prompt and output that the server can hold, with a draft behind them."""
        return min(self.memory.context, self.memory.tokens) - self._longest_draft

    @property
    def _longest_draft(self) -> int:
        return 0 if self.system.drafting == "none" else self._longest

    def check_lengths(self, prompt: int, output: int) -> None:
        """Refuse a response that the server cannot hold."""
        longest = prompt + output + self._longest_draft
        if longest > self.memory.context:
            raise SkitError(
                f"a response of {prompt} + {output} tokens exceeds the model's context of {self.memory.context:g}: "
                "choose shorter lengths"
            )
        if longest > self.memory.tokens:
            raise SkitError(
                f"a response of {prompt} + {output} tokens exceeds the server's KV memory of {self.memory.tokens:g} "
                "tokens: choose shorter lengths or a larger device"
            )

    def _check_slo(self, name: str, speed: float) -> None:
        """Refuse a speed at which a typical round of no device leaves time for even its own verification."""
        rounds = [self._typical_round(kind, speed) for kind in self.kinds]
        committed, left_s, needed_s = max(rounds, key=lambda one: one[1] - one[2])
        if left_s < needed_s:
            raise SkitError(
                f"no batch can meet the SLO '{name}' of {speed:g} tokens/s: a round brings {committed:.2f} tokens, and "
                f"{max(left_s, 0) * 1e3:.0f} ms are left for a verification of {needed_s * 1e3:.0f} ms; "
                "promise less, or use a faster drafter or link"
            )

    def _typical_round(self, kind: DeviceKind, speed: float) -> tuple[float, float, float]:
        """Tokens that it brings, the seconds that are left for its verification, and those that it needs alone."""
        typical, link = kind.source.typical, kind.deployment.link
        on_edge = self.system.drafting == "edge"
        draft_s = typical.steps * _step_s(kind.deployment.drafter.latency) if on_edge else 0.0
        sent = round(typical.submitted) if on_edge else 0
        committed = typical.committed if self.system.drafting != "none" else 1.0
        left_s = budget_s(committed, speed, draft_s, link.rtt_s if on_edge else 0.0)
        needed_s = self.deployment.verifier.pass_s(((1 + sent, longest(self.prompt_tokens or 1)),))
        return committed, left_s, needed_s


def _step_s(latency: LatencyModel) -> float:
    return latency.seconds(((1, 1),))
