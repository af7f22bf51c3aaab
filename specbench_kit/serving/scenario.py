"""A scenario: devices and their requests, the server and its scheduler, and the token speeds that
are promised.
"""

from dataclasses import dataclass, field
from math import ceil, isfinite

from specbench_kit.core.errors import SkitError, require
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method
from specbench_kit.serving.arrivals import ArrivalProcess, ClosedLoop
from specbench_kit.serving.fleet import DeviceKind
from specbench_kit.serving.lengths import Lengths, longest, shortest
from specbench_kit.serving.memory import UNLIMITED_KV, KvCapacity
from specbench_kit.serving.network import NO_DELAYS, Network
from specbench_kit.serving.options import DEFAULT_ROUTER, Objective
from specbench_kit.serving.pool_spec import Outage, PoolServer, check_outages
from specbench_kit.serving.round_sources import RoundSource
from specbench_kit.serving.routers.base import Router, parse_router
from specbench_kit.serving.schedulers.base import BatchLimits, Scheduler, parse_scheduler
from specbench_kit.serving.schedulers.estimator import EXACT, EstimatorError
from specbench_kit.serving.slo import SloMix, parse_slo, verification_budget_s
from specbench_kit.serving.systems.base import ServingSystem

DEFAULT_SLO = parse_slo("2")


@dataclass(frozen=True)
class Scenario:
    """Everything that a simulation depends on besides its seed; checked when it is made.

    `prompt_tokens` and `output_tokens` count where the arrivals state no lengths; if they are None, the source's do.
    A server that drafts does so as `batch_method` decides for the
    whole batch, or as far as each round says if that is None, and never beyond `longest_draft`. `verify_cv` is the
    coefficient of variation of verifications of one size. `scheduler` replaces the system's own. Nothing counts before
    `warmup_s`. Devices are of the kinds in `fleet`; if there are none, all have the deployment's drafter and link, and
    the source's rounds. `servers` is the number of servers with the deployment's verifier and the `memory`, or the
    servers themselves; `router` decides which of several verifies a response. A scenario that does not
    `require_attainable_slo` may promise what no batch can meet, as the devices of a real server may.
    """

    deployment: Deployment
    system: ServingSystem
    source: RoundSource
    devices: int
    slo: SloMix = DEFAULT_SLO
    arrivals: ArrivalProcess = field(default_factory=ClosedLoop)
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    memory: KvCapacity = UNLIMITED_KV
    scheduler: str | None = None
    estimator: EstimatorError = EXACT
    max_batch: int = 64
    batch_method: Method | None = None
    longest_draft: int | None = None
    duration_s: float = 600.0
    warmup_s: float = 60.0
    fleet: tuple[DeviceKind, ...] = ()
    network: Network = NO_DELAYS
    verify_cv: float = 0.0
    require_attainable_slo: bool = True
    servers: int | tuple[PoolServer, ...] = 1
    router: str = DEFAULT_ROUTER
    outages: tuple[Outage, ...] = ()

    def __post_init__(self) -> None:
        require(self.devices >= 1, f"a simulation needs at least 1 device, not {self.devices}")
        require(self.max_batch >= 1, f"a batch must hold at least 1 request, not {self.max_batch}")
        require(
            isfinite(self.duration_s) and 0 <= self.warmup_s < self.duration_s,
            f"the warm-up of {self.warmup_s:g} s must end before the {self.duration_s:g} s that are simulated: "
            "give a longer --duration or a shorter --warm-up",
        )
        valid_cv = isfinite(self.verify_cv) and self.verify_cv >= 0
        require(valid_cv, f"--verify-cv takes a share from 0 on, not {self.verify_cv:g}")
        for name, lengths in (
            ("prompt_tokens", self.prompt_tokens),
            ("output_tokens", self.output_tokens),
        ):
            require(
                lengths is None or longest(lengths) >= 1,
                f"{name} must be at least 1, not {lengths}",
            )
        if self.prompt_tokens is not None and self.output_tokens is not None:
            self.check_lengths(longest(self.prompt_tokens), longest(self.output_tokens))
        check_outages(self.outages, len(self.pool), self.duration_s)
        if self.require_attainable_slo:
            for name, speed in zip(self.slo.names, self.slo.speeds, strict=True):
                self._check_slo(name, speed)

    @property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """Kinds of devices; one if there is no fleet."""
        return self.fleet or (DeviceKind(self.deployment.name, 1.0, self.deployment, self.source),)

    @property
    def pool(self) -> tuple[PoolServer, ...]:
        """All servers; one without a pool."""
        if isinstance(self.servers, tuple):
            return self.servers
        return tuple(
            PoolServer(str(number), self.deployment, self.memory)
            for number in range(1, self.servers + 1)
        )

    @property
    def has_pool(self) -> bool:
        """True unless there is a single server that never fails and verifies one batch at a
        time.
        """
        return len(self.pool) > 1 or bool(self.outages) or self.depth(self.pool[0]) > 1

    def depth(self, server: PoolServer) -> int:
        """Return how many batches a server has under way at most: one for each stage of its
        pipeline.

        A server that drafts has one, since it drafts before every verification.
        """
        return 1 if self.system.drafting == "server" else server.deployment.verifier.stages

    def make_router(self) -> Router:
        """Return the router of the pool."""
        return parse_router(self.router)

    def make_scheduler(self) -> Scheduler:
        """Return the system's own scheduler, or the one that replaces it."""
        return parse_scheduler(self.scheduler or self.system.scheduler)

    def limits(self, server: PoolServer) -> BatchLimits:
        """Return the limits of a batch on a server; what the server may draft for it has to fit
        into memory as well.

        All batches under way in a pipeline share both limits.
        """
        drafted = self.max_batch * self._longest_draft if self.system.drafting == "server" else 0
        depth = self.depth(server)
        return BatchLimits(ceil(self.max_batch / depth), server.memory.tokens / depth - drafted)

    @property
    def longest_response(self) -> float:
        """Tokens of prompt and output that every server can hold, with a draft behind them."""
        room = (
            min(server.memory.context, server.memory.tokens / self.depth(server))
            for server in self.pool
        )
        return min(room) - self._longest_draft

    @property
    def _longest_draft(self) -> int:
        if self.system.drafting == "none":
            return 0
        return max(kind.source.typical.longest for kind in self.kinds)

    def check_lengths(self, prompt: int, output: int) -> None:
        """Raise SkitError if a server cannot hold a response of these lengths: any of them may get
        it.
        """
        tokens = prompt + output + self._longest_draft
        for memory, depth in ((server.memory, self.depth(server)) for server in self.pool):
            if tokens > memory.context:
                raise SkitError(
                    f"a response of {prompt} + {output} tokens exceeds the model's context of {memory.context:g}: "
                    "choose shorter lengths"
                )
            if tokens > memory.tokens / depth:
                shared = f" for each of {depth} batches under way" if depth > 1 else ""
                raise SkitError(
                    f"a response of {prompt} + {output} tokens exceeds the server's KV memory of "
                    f"{memory.tokens / depth:g} tokens{shared}: choose shorter lengths or a larger device"
                )

    def check_due(self, objective: Objective, expected_tokens: int = 0) -> None:
        """Raise SkitError if the promise gives even the shortest response more time than the run
        has.

        Where neither the options nor the source know the length of a response, it is
        `expected_tokens`; 0 is unknown.
        """
        tokens = (
            self.source.shortest_output
            if self.output_tokens is None
            else shortest(self.output_tokens)
        )
        tokens = tokens or expected_tokens
        if self.arrivals.states_lengths or not tokens:
            return
        speed = max(self.slo.speeds)
        left_s = self.duration_s - self.warmup_s
        allowed_s = (tokens - (objective == "tpot")) / speed
        if allowed_s > left_s:
            raise SkitError(
                f"no response of {tokens} tokens is due within {self.duration_s:g} s: the first {self.warmup_s:g} s "
                f"are the warm-up, and at {speed:g} tokens/s a response may take {allowed_s:.0f} s: give --duration "
                f"{ceil(self.warmup_s + 2 * allowed_s)} or more, or a shorter --warm-up"
            )

    def _check_slo(self, name: str, speed: float) -> None:
        """Raise SkitError if no kind of device leaves time for a verification in a typical round at
        this speed.
        """
        rounds = [self._typical_round(kind, speed) for kind in self.kinds]
        committed, budget_s, needed_s = max(rounds, key=lambda round_: round_[1] - round_[2])
        if budget_s < needed_s:
            raise SkitError(
                f"no batch can meet the SLO '{name}' of {speed:g} tokens/s: a round brings {committed:.2f} tokens, and "
                f"{max(budget_s, 0) * 1e3:.0f} ms are left for a verification of {needed_s * 1e3:.0f} ms; "
                "promise less, or use a faster drafter or link"
            )

    def _typical_round(self, kind: DeviceKind, speed: float) -> tuple[float, float, float]:
        """Return committed tokens, the seconds left for a verification, and the seconds of an
        isolated one.
        """
        typical = kind.source.typical
        link = kind.deployment.link
        on_edge = self.system.drafting == "edge"
        draft_s = typical.steps * kind.source.costs.token_s(kind.deployment) if on_edge else 0.0
        sent = round(typical.submitted) if on_edge else 0
        committed = typical.committed if self.system.drafting != "none" else 1.0
        budget_s = verification_budget_s(committed, speed, draft_s, link.rtt_s if on_edge else 0.0)
        row = (1 + sent, longest(self.prompt_tokens or 1))
        needed_s = min(server.deployment.verifier.pass_s((row,)) for server in self.pool)
        return committed, budget_s, needed_s
