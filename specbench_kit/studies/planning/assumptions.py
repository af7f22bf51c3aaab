"""What a plan takes for granted, each moved: which of it the answer rests on most, and what the
answer would be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log

from specbench_kit.decoding.latency import ScaledLatency
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import WorkLog
from specbench_kit.methods.spec import parse_method
from specbench_kit.serving.acceptance_spec import named_trace
from specbench_kit.serving.round_sources import (
    PositionRates,
    RatesByPlace,
    RecordedRounds,
    RoundSource,
)
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.planning.candidates import Candidate, Market, pausing
from specbench_kit.studies.planning.law import Law, draw_responses
from specbench_kit.studies.planning.search import ReplicaFleet
from specbench_kit.studies.planning.summary import DraftingDevice
from specbench_kit.traces.draft_limits import fit_spec

LONGER = 4
"""Factor on the length of prompts."""
SLOWER = 2.0
"""Factor on the link's round trip and on the time of a draft step."""
LESS_OFTEN = 0.8
"""Factor on how often a drafted token is accepted."""
STRICTER = 0.01
"""Share of responses that may fall short, in place of the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption: what it is, what it was moved to, and the scenario and the share of late
    responses then.
    """

    name: str
    assumed: str
    moved: str
    scenario: Scenario
    epsilon: float


def assumptions(market: Market, fleet: ReplicaFleet) -> Iterator[Assumption]:
    """Yield every assumption of a fleet that can be moved."""
    options = market.options
    candidate = fleet.candidate
    scenario = market.scenario(candidate)
    epsilon = options.epsilon
    on_edge = candidate.placement == "edge"
    if options.think_s == 0:
        response_s = market.response_s
        moved = replace(scenario, arrivals=pausing(response_s, response_s))
        text = f"pauses of {response_s:.0f} s on average after responses, as long as one at the promised speed"
        yield Assumption("activity", "all devices request without a pause", text, moved, epsilon)
    if candidate.placement != "none" and (harder := _hardest_task(market, candidate)):
        assumed, text, source = harder
        yield Assumption("tasks", assumed, text, replace(scenario, source=source), epsilon)
    prompt = draw_responses(scenario).prompt
    longer = replace(scenario, prompt_tokens=round(LONGER * prompt))
    yield Assumption(
        "prompts",
        f"{prompt:.0f} tokens on average",
        f"{LONGER * prompt:.0f} tokens each",
        longer,
        epsilon,
    )
    if on_edge:
        deployment = scenario.deployment
        on_average = " on average" if scenario.network.trace else ""
        yield Assumption(
            "round trip",
            f"{1e3 * deployment.link.rtt_s:.4g} ms{on_average}",
            f"{1e3 * SLOWER * deployment.link.rtt_s:.4g} ms{on_average}",
            _with_longer_round_trips(scenario),
            epsilon,
        )
    if epsilon > STRICTER:
        yield Assumption(
            "late responses",
            f"{epsilon:.0%} of responses may fall short",
            f"{STRICTER:.0%} of them",
            scenario,
            STRICTER,
        )


def _with_longer_round_trips(scenario: Scenario) -> Scenario:
    link = scenario.deployment.link
    network = scenario.network
    if (trace := network.trace) is not None and trace.rtt_s is not None:
        network = replace(network, trace=replace(trace, rtt_s=SLOWER * trace.rtt_s))
    deployment = replace(scenario.deployment, link=replace(link, rtt_s=SLOWER * link.rtt_s))
    return replace(scenario, deployment=deployment, network=network)


def about_drafts(market: Market, fleet: ReplicaFleet, plan: ReplicaFleet) -> Iterator[Assumption]:
    """Yield what a fleet that drafts assumes of its drafts, moved against the plan by a stated
    factor.

    The drafts of the plan itself become worse; those of another fleet, which might then be the
    cheaper one, better.
    """
    candidate = fleet.candidate
    scenario = market.scenario(candidate)
    epsilon = market.options.epsilon
    is_worse = fleet is plan
    often = LESS_OFTEN if is_worse else 1 / LESS_OFTEN
    source = market.source(candidate)
    if isinstance(source, PositionRates | RatesByPlace | RecordedRounds):
        moved = source.with_rates_times(often)
        yield Assumption(
            "acceptance",
            f"a drafted token is accepted at a rate of {source.typical.rate:.2f}, {source.typical.committed:.2f} "
            "tokens per round",
            f"{often:g} times that rate, {moved.typical.committed:.2f} tokens per round",
            replace(scenario, source=moved),
            epsilon,
        )
    slower = SLOWER if is_worse else 1 / SLOWER
    step_s = drafting_device(scenario.deployment).token_s
    where = "on the devices" if candidate.placement == "edge" else "on the server"
    yield Assumption(
        "drafting speed",
        f"a drafted token takes {1e3 * step_s:.3g} ms {where}",
        f"{slower:g} times that, {1e3 * slower * step_s:.3g} ms",
        replace(scenario, deployment=_with_drafter_times(scenario.deployment, slower)),
        epsilon,
    )


def drafting_device(deployment: Deployment) -> DraftingDevice:
    """Return what drafts in a deployment, and how long it takes for a token."""
    drafter = deployment.drafter
    return DraftingDevice(drafter.device, drafter.latency.seconds(((1, 1),)))


def _with_drafter_times(deployment: Deployment, factor: float) -> Deployment:
    drafter = deployment.drafter
    return replace(
        deployment, drafter=replace(drafter, latency=ScaledLatency(drafter.latency, factor))
    )


def _hardest_task(market: Market, candidate: Candidate) -> tuple[str, str, RoundSource] | None:
    """Return in words what a trace's tasks have accepted, what its hardest has, and that task's
    rounds.

    None where the acceptance is no trace of several tasks.
    """
    text = market.options.acceptance
    mean = market.source(candidate).typical.committed
    costs = market.source(candidate).costs
    trace = named_trace(text)
    if trace is None:
        return None
    deployment = market.deployment(candidate.server, "edge")
    from specbench_kit.traces.replay import prepare_for_replay, replay

    method = prepare_for_replay(
        parse_method(fit_spec(candidate.method, trace.header)), trace, deployment
    )
    by_task: dict[str, list[RequestRecord]] = {}
    work = WorkLog()
    for record in replay(method, trace.header, trace, deployment=deployment, log=work):
        by_task.setdefault(record.category, []).append(record)
    if len(by_task) < 2:
        return None
    sources = {
        task: RecordedRounds(records, log=work, costs=costs) for task, records in by_task.items()
    }
    hardest = min(sources, key=lambda task: sources[task].typical.committed)
    tokens = sources[hardest].typical.committed
    assumed = f"{mean:.2f} tokens per round, as in the whole of {text}"
    return (
        assumed,
        f"{tokens:.2f}, as in its task '{hardest}' alone, with that task's lengths",
        sources[hardest],
    )


def by_weight(market: Market, fleet: ReplicaFleet) -> list[Assumption]:
    """Return the assumptions in the order in which they change the rent by the law, the weightiest
    first.
    """
    scenario = market.scenario(fleet.candidate)
    before = _served(scenario, market.options.epsilon)

    def weight(assumption: Assumption) -> float:
        after = _served(assumption.scenario, assumption.epsilon)
        return abs(log(after / before)) if after and before else inf

    return sorted(assumptions(market, fleet), key=weight, reverse=True)


def _served(scenario: Scenario, epsilon: float) -> float:
    return Law(scenario, draw_responses(scenario), epsilon).estimate().devices
