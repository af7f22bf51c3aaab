"""Places a method on a deployment: the time that its loop takes there, and the environment that it
plans with.

Drafters and verifiers charge the deployment's time, whatever time they really take. A method that
drafts at the edge is compared with the same rounds with its draft model on the server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch
from msgspec import structs
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, DraftSource, PlannedRound, ReportsForwards
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict, Verifier
from specbench_kit.deployments.at_ends import TimelinesAtEnd
from specbench_kit.deployments.base import RECORDED, Deployment, Endpoint
from specbench_kit.deployments.description import digest
from specbench_kit.deployments.drafting_work import WorkLog
from specbench_kit.deployments.single_request_clock import SingleRequestClock
from specbench_kit.deployments.timelines import RequestTimeline, Timelines
from specbench_kit.methods.base import Environment, Latencies, LinkCosts, Method
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey
from specbench_kit.profilers.base import Role
from specbench_kit.profilers.loading import find_measured
from specbench_kit.runs.deployment import TOKEN_BYTES
from specbench_kit.runs.document import HiddenStates


def colocate(deployment: Deployment) -> Deployment:
    """Return the deployment with the draft model on the server, so that only prompt and answer
    cross the link.

    Draft steps take the time of the deployment's `colocated` endpoint, or as long as at the edge if
    there is none.
    """
    return replace(
        deployment, drafter=deployment.colocated or deployment.drafter, placement="server"
    )


@dataclass(slots=True)
class _ColocatedRequest:
    arrived_s: float
    drafting_s: float = 0.0
    """The draft model's seconds for this request."""
    ahead_s: float = 0.0
    """The seconds of what was drafted ahead in this round, which has to wait for the answer
    here.
    """


class Colocated(Timelines):
    """The timelines of a co-located deployment, which charge rounds that were decided on other
    timelines.

    Drafting ahead, while the target verifies, happens here after the answer, and only if the answer
    was guessed. When a request ends, its record stores how long it took here.
    """

    def __init__(
        self, deployment: Deployment, *, learned: bool, states: HiddenStates | None = None
    ) -> None:
        server_states = structs.replace(states, bytes_per_token=0.0) if states else None
        super().__init__(
            colocate(deployment),
            ModelledClock(),
            on_edge=False,
            learned=learned,
            states=server_states,
        )
        self._colocated: dict[str, _ColocatedRequest] = {}
        self._sent = False

    def admit(self, session: Session) -> None:
        """Add a request."""
        super().admit(session)
        self._colocated[session.request.id] = _ColocatedRequest(self.clock.now_s())

    def release(self, session: Session) -> None:
        """Remove a request, and store in its record how long it took."""
        super().release(session)
        request = self._colocated.pop(session.request.id)
        session.record.colocated_s = self.clock.now_s() - request.arrived_s
        session.record.colocated_draft_s = request.drafting_s

    def begin(self, drafts: Sequence[Draft]) -> None:
        """Start a round with the work that was drafted ahead for it, if that is of use."""
        super().begin(drafts)
        self._sent = False
        waiting = [draft for draft in drafts if self._colocated[draft.request_id].ahead_s]
        if waiting:
            seconds = [self._colocated[draft.request_id].ahead_s for draft in waiting]
            for draft in waiting:
                self._colocated[draft.request_id].ahead_s = 0.0
            self._work("draft", [self._requests[draft.request_id] for draft in waiting], seconds)

    def draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        """Charge one batched draft forward, at once, or in the next round if the drafts were sent
        already.
        """
        if not self._sent:
            super().draft(frontier)
            return
        rows = [self._draft_row(draft, nodes) for draft, nodes in frontier]
        step_s = self._drafter.latency.seconds(rows) + self._decision_s * len(frontier)
        for draft, _ in frontier:
            self._colocated[draft.request_id].ahead_s += step_s

    def verify(self, verdicts: Sequence[Verdict]) -> list[Row]:
        """Charge one verification, and the link if the prompt has not crossed it."""
        self._sent = True
        return super().verify(verdicts)

    def drafted(self, draft: Draft, path: Sequence[int], kept: int | None) -> None:
        """Forget what was drafted ahead unless the answer was guessed."""
        super().drafted(draft, path, kept)
        if kept is None:
            self._colocated[draft.request_id].ahead_s = 0.0

    def _work(
        self, label: str, requests: Sequence[RequestTimeline], seconds: Sequence[float]
    ) -> None:
        super()._work(label, requests, seconds)
        for request in requests:
            self._colocated[request.name].drafting_s += max(seconds) / len(requests)

    def backdate_arrival(self, session: Session, seconds: float) -> None:
        """Move the arrival of a request here back by so many seconds; the session's own arrival
        stays.
        """
        self._colocated[session.request.id].arrived_s -= seconds


class TimedDrafter:
    """Any drafter, charged with the time that it would take under a deployment.

    `charged` are its timelines, the first of which it goes by, each with the latencies of the models that a drafter
    which reports its forwards names. `colocated` charges the same rounds with the draft model on the server.
    """

    def __init__(
        self,
        drafter: DraftSource,
        charged: Sequence[tuple[Timelines, Mapping[str, LatencyModel]]],
        colocated: Colocated | None = None,
    ) -> None:
        self._drafter = drafter
        self._charged = charged
        self._timelines = charged[0][0]
        self._all = [*(timelines for timelines, _ in charged), *([colocated] if colocated else [])]
        self._reporting = drafter if isinstance(drafter, ReportsForwards) else None

    @property
    def drafts(self) -> list[Draft]:
        return self._drafter.drafts

    @property
    def clock(self) -> ModelledClock:
        return self._timelines.clock

    def awaits_answer(self, draft: Draft) -> bool:
        """Return whether the drafting device is free before the answer arrives."""
        return self._timelines.awaits_answer(draft)

    def has_reached_server(self, draft: Draft, node: int) -> bool:
        """Return whether a node, sent when it was drafted, was at the server when its last
        verification ended.
        """
        return self._timelines.has_reached_server(draft, node)

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Return how many tokens of a draft at each offset of the answer's rest would be right, if
        this is known.
        """
        return self._drafter.foresee(draft, longest)

    def fastest_rounds(
        self, draft: Draft, longest: int, *, server_decodes: bool
    ) -> Mapping[int, PlannedRound] | None:
        """Return the fastest rounds for the rest of the answer, as if its request were decoded
        alone.
        """
        # The time of a drafter that reports its forwards depends on which of its models drafted
        # before.
        right = self._drafter.foresee(draft, longest) if self._reporting is None else None
        return (
            None
            if right is None
            else self._timelines.fastest_rounds(draft, right, server_decodes=server_decodes)
        )

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        drafts = self._drafter.begin(sessions)
        for timelines in self._all:
            timelines.begin(drafts)
        return drafts

    def room(self, draft: Draft) -> int:
        """Return the number of nodes that the tree can still take."""
        return self._drafter.room(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append one token to each chain, and return the drafts that had room for it."""
        grown = self._drafter.extend(drafts)
        if self._reporting is not None:
            forwards = self._reporting.forwards()
            for timelines, latencies in self._charged:
                for model, phase, rows in forwards:
                    timelines.forward(phase, rows, latencies[model], model)
                timelines.decide(grown)
        elif grown:
            self._draft([(draft, (draft.tree.last - 1,)) for draft in grown])
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Forward tree nodes, and return their distributions."""
        self._draft(frontier)
        return self._drafter.expand(frontier)

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Keep the accepted nodes."""
        for timelines in self._all:
            timelines.drafted(draft, path, root)
        self._drafter.commit(draft, path, root, states)

    def release(self, session: Session) -> None:
        """Remove a finished request."""
        self._drafter.release(session)

    def _draft(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> None:
        for timelines in self._all:
            timelines.draft(frontier)


class TimedVerifier:
    """Any verifier, charged with the time that a deployment's link and verifier would take.

    `others` charge the same rounds beside the timelines that the run goes by.
    """

    def __init__(
        self, verifier: Verifier, timelines: Timelines, others: Sequence[Timelines] = ()
    ) -> None:
        self._verifier = verifier
        self._timelines = timelines
        self._others = others
        self.asynchronous = verifier.asynchronous

    def admit(self, session: Session) -> None:
        """Add a new request."""
        self._timelines.admit(session)
        for timelines in self._others:
            timelines.admit(session)
        self._verifier.admit(session)

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Verify the chosen nodes of every draft at once; the timelines model when the answer
        arrives.
        """
        verdicts = self._verifier.send(drafts, chosen)()
        rows = self._timelines.verify(verdicts)
        for timelines in self._others:
            timelines.verify(verdicts)
        timed = [
            replace(verdict, computed=new) for verdict, (new, _) in zip(verdicts, rows, strict=True)
        ]
        return lambda: timed

    def commit(self, verdict: Verdict) -> None:
        """Keep the accepted nodes."""
        self._timelines.verified(verdict)
        for timelines in self._others:
            timelines.verified(verdict)
        self._verifier.commit(verdict)

    def release(self, session: Session) -> None:
        """Remove a finished request."""
        self._timelines.release(session)
        for timelines in self._others:
            timelines.release(session)
        self._verifier.release(session)


def add_modelled_time(
    method: Method,
    drafter: DraftSource,
    verifier: Verifier,
    deployment: Deployment,
    clock: ModelledClock,
    states: HiddenStates | None = None,
    ends: Sequence[Deployment] = (),
    log: WorkLog | None = None,
) -> tuple[TimedDrafter, TimedVerifier, ModelledClock]:
    """Return drafter and verifier charged with a deployment's time, and the clock that they charge.

    Records say what the same rounds take at the `ends` of the deployment's range as well. `log`
    collects the work of drafting.
    """
    learned = method.learned
    placed = with_method_times(method, deployment)
    on_edge = drafts_on_edge(method, deployment)
    timelines = Timelines(placed, clock, on_edge=on_edge, learned=learned, states=states)
    timelines.log = log
    at_ends = [
        TimelinesAtEnd(
            with_method_times(method, end), on_edge=on_edge, learned=learned, states=states
        )
        for end in ends
    ]
    colocated = None
    if can_be_colocated(method, deployment) and not isinstance(drafter, ReportsForwards):
        colocated = Colocated(placed, learned=learned, states=states)
    latencies = [
        method.drafting.latencies(placed_at.drafter.latency) for placed_at in (deployment, *ends)
    ]
    charged = list(zip([timelines, *at_ends], latencies, strict=True))
    others = [*([colocated] if colocated else []), *at_ends]
    return (
        TimedDrafter(drafter, charged, colocated),
        TimedVerifier(verifier, timelines, others),
        clock,
    )


def single_request_clock(
    method: Method,
    deployment: Deployment,
    states: HiddenStates | None = None,
    log: WorkLog | None = None,
) -> SingleRequestClock:
    """Return the clock of a deployment that serves one request after the other; `log` collects the
    drafting work.
    """
    return SingleRequestClock(
        with_method_times(method, deployment),
        on_edge=drafts_on_edge(method, deployment),
        learned=method.learned,
        states=states,
        log=log,
    )


def colocated_request_clock(
    method: Method, deployment: Deployment, states: HiddenStates | None = None
) -> SingleRequestClock | None:
    """Return the clock of one request after the other with the draft model on the server.

    Return None if the draft model is there already, or has to be at the edge.
    """
    if not can_be_colocated(method, deployment):
        return None
    return single_request_clock(
        method, colocate(deployment), states and structs.replace(states, bytes_per_token=0.0)
    )


def can_be_colocated(method: Method, deployment: Deployment) -> bool:
    """Return whether the method drafts at the edge, and could draft on the server as well."""
    return method.placement is None and drafts_on_edge(method, deployment)


def drafts_on_edge(method: Method, deployment: Deployment) -> bool:
    """Return whether the method's draft tokens come from the edge, across the link."""
    return (method.placement or deployment.placement) == "edge" and method.uses_drafter


def states_on_the_way(
    method: Method, deployment: Deployment, layers: Sequence[int], layer_bytes: float
) -> HiddenStates | None:
    """Return the hidden states that the method's drafter reads of these layers, or None if there
    are no layers.

    A token's state of a layer takes `layer_bytes`, unless the deployment's link states another
    size.
    """
    if not layers:
        return None
    layers = tuple(sorted(set(layers)))
    token_bytes = (deployment.link.state_bytes or layer_bytes) * len(layers)
    return HiddenStates(layers, token_bytes if drafts_on_edge(method, deployment) else 0.0)


def with_method_times(method: Method, deployment: Deployment) -> Deployment:
    """Return the deployment with the latency of the method's drafter, and of a target beside it.

    The time of a decision is the deployment's, or the method's if the deployment does not state it.
    """

    def with_latency(endpoint: Endpoint) -> Endpoint:
        return replace(endpoint, latency=method.drafting.latency(endpoint.latency))

    return replace(
        with_engine_times(method, deployment),
        drafter=with_latency(deployment.drafter),
        colocated=with_latency(deployment.colocated) if deployment.colocated else None,
        predictor_s=method.decision_s if deployment.predictor_s is None else deployment.predictor_s,
    )


def with_engine_times(method: Method, deployment: Deployment) -> Deployment:
    """Return the deployment with the target's steps as they are while the method speculates, if it
    does.
    """
    return deployment.while_speculating if method.uses_drafter else deployment


def environment(
    pair: PairHashes, deployment: Deployment | None, device: str | torch.device = "auto"
) -> Environment:
    """Return the environment of a deployment, or of this machine, where the pair has to be profiled
    first.
    """

    def latencies() -> Latencies:
        if deployment is not None:
            return Latencies(
                deployment.drafter.latency,
                deployment.verifier.while_speculating.latency,
                link_costs(deployment),
            )
        return Latencies(
            _measured(pair.draft, "drafter", device), _measured(pair.target, "verifier", device)
        )

    def verification() -> LatencyModel | None:
        if deployment is not None:
            return deployment.verifier.while_speculating.latency
        profile = find_measured(pair.target, "verifier", device)
        return None if profile is None else profile.latency()

    return Environment(
        pair,
        latencies,
        modelled=deployment is not None,
        deployment=deployment_key(deployment),
        verification=verification,
        link_s=deployment.link.rtt_s
        if deployment is not None and deployment.placement == "edge"
        else 0.0,
        server_decodes=deployment is not None and deployment.placement == "edge",
    )


def link_costs(deployment: Deployment) -> LinkCosts | None:
    """Return what the deployment's link adds to a round on average, or None if drafts do not cross
    it.
    """
    link = deployment.link
    if deployment.placement != "edge":
        return None
    return LinkCosts(
        # A message is sent 1 / (1 - loss) times on average, and a round has two.
        rtt_s=link.rtt_s + 2 * link.retry_s * link.loss / (1 - link.loss),
        jitter_s=link.jitter_s,
        up_bytes=TOKEN_BYTES + link.draft_bytes,
        down_bytes=TOKEN_BYTES,
        up_bytes_per_s=link.up_bytes_per_s or inf,
        down_bytes_per_s=link.down_bytes_per_s or inf,
    )


def deployment_key(deployment: Deployment | None) -> DeploymentKey:
    """Return the key of tuned thresholds; the machine that recorded a trace counts as this one."""
    if deployment is None or deployment.name == RECORDED:
        return LOCAL_DEPLOYMENT
    return DeploymentKey(deployment.name, digest(deployment))


def _measured(model_hash: str, role: Role, device: str | torch.device) -> LatencyModel:
    profile = find_measured(model_hash, role, device, form="context")
    if profile is None:
        raise SkitError(
            f"no latency profile of this pair's {role} was measured on this machine: "
            "run skit profile-drafter with the same --target and --draft, or choose a --deployment"
        )
    return profile.latency()
