"""What a plan takes for granted, each moved: which of it the answer rests on most, and what the answer would be."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log

from specbench_kit.decoding.latency import ScaledLatency
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import WorkLog
from specbench_kit.methods.spec import parse_method
from specbench_kit.serving.acceptance_spec import IidRates, RatesByPosition, named_trace, parse_rates
from specbench_kit.serving.round_sources import RecordedRounds, RoundSource
from specbench_kit.serving.scenario import Scenario
from specbench_kit.studies.planning.candidates import Candidate, Market, pausing
from specbench_kit.studies.planning.law import Law, draw_responses
from specbench_kit.studies.planning.search import ReplicaFleet
from specbench_kit.traces.draft_limits import fit_spec

LONGER = 4
"""Factor on the length of prompts."""
SLOWER = 2.0
"""Factor on the link's round trip and on the time of a draft step."""
LESS = 0.1
"""What is taken off a stated acceptance rate."""
STRICTER = 0.01
"""Share of responses that may fall short, in place of the one that was asked for."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption: what it is, what it was moved to, and the scenario and the share of late responses then."""

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
    if candidate.placement != "none" and (harder := _harder(market, candidate)):
        assumed, text, source = harder
        yield Assumption("acceptance", assumed, text, replace(scenario, source=source), epsilon)
    prompt = draw_responses(scenario).prompt
    longer = replace(scenario, prompt_tokens=round(LONGER * prompt))
    yield Assumption(
        "prompts", f"{prompt:.0f} tokens on average", f"{LONGER * prompt:.0f} tokens each", longer, epsilon
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
        step_s = deployment.drafter.latency.seconds(((1, 1),))
        yield Assumption(
            "drafting device",
            f"{1e3 * step_s:.3g} ms per drafted token",
            f"{1e3 * SLOWER * step_s:.3g} ms",
            replace(scenario, deployment=_with_slower_drafter(deployment)),
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


def _with_slower_drafter(deployment: Deployment) -> Deployment:
    drafter = deployment.drafter
    return replace(deployment, drafter=replace(drafter, latency=ScaledLatency(drafter.latency, SLOWER)))


def _harder(market: Market, candidate: Candidate) -> tuple[str, str, RoundSource] | None:
    """Return in words what acceptance is assumed, what a harder load has, and that load's rounds; None if unknown."""
    text = market.options.acceptance
    mean = market.source(candidate).typical.committed
    rates = parse_rates(text)
    costs = market.source(candidate).costs
    if isinstance(rates, IidRates):
        harder = replace(rates, alpha=max(0.0, rates.alpha - LESS))
        return f"{rates.alpha:g} of drafted tokens", f"{harder.alpha:g}", harder.source(costs)
    if isinstance(rates, RatesByPosition):
        lower = replace(rates, rates=tuple(max(0.0, rate - LESS) for rate in rates.rates))
        return "as stated by position", f"{LESS:g} less at each", lower.source(costs)
    trace = None if rates is not None else named_trace(text)
    if trace is None:
        return None
    deployment = market.deployment(candidate.server, "edge")
    from specbench_kit.traces.replay import prepare_for_replay, replay

    method = prepare_for_replay(parse_method(fit_spec(candidate.method, trace.header)), trace, deployment)
    by_task: dict[str, list[RequestRecord]] = {}
    work = WorkLog()
    for record in replay(method, trace.header, trace, deployment=deployment, log=work):
        by_task.setdefault(record.category, []).append(record)
    if len(by_task) < 2:
        return None
    sources = {task: RecordedRounds(records, log=work, costs=costs) for task, records in by_task.items()}
    hardest = min(sources, key=lambda task: sources[task].typical.committed)
    tokens = sources[hardest].typical.committed
    assumed = f"{mean:.2f} tokens per round, as in the whole of {text}"
    return assumed, f"{tokens:.2f}, as in its task '{hardest}' alone", sources[hardest]


def by_weight(market: Market, fleet: ReplicaFleet) -> list[Assumption]:
    """Return the assumptions in the order in which they change the rent by the law, the weightiest first."""
    scenario = market.scenario(fleet.candidate)
    before = _served(scenario, market.options.epsilon)

    def weight(assumption: Assumption) -> float:
        after = _served(assumption.scenario, assumption.epsilon)
        return abs(log(after / before)) if after and before else inf

    return sorted(assumptions(market, fleet), key=weight, reverse=True)


def _served(scenario: Scenario, epsilon: float) -> float:
    return Law(scenario, draw_responses(scenario), epsilon).estimate().devices
