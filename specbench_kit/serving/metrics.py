"""The metrics of one simulation: SLO violations, goodput, acceptance length, latencies, server load
and cost.

They are those of the whole simulation after its warm-up; the course of some is given in equal spans
of time too.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import structs

from specbench_kit.metrics.latency import STRETCHES, p99
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.serving.arrays import Floats, Integers, Mask
from specbench_kit.serving.figures import (
    ClassFigures,
    Figures,
    GroupFigures,
    Interval,
    MissCauses,
    Real,
    ResponseLatencies,
    ServingFigures,
    SteadyState,
    TimeSeries,
)
from specbench_kit.serving.fleet import Fleet
from specbench_kit.serving.options import Objective
from specbench_kit.serving.result import SimulationResult, Table
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_metrics import (
    STEADY_WITHIN,
    cost,
    distribution,
    mean,
    pool_metrics,
    rows_after,
    server_metrics,
    servers_of,
    throughput_drift,
    verifying_servers,
    warm_up_end_s,
)

SPANS = 60


def time_series(result: SimulationResult, depths: Sequence[int] = (1,)) -> TimeSeries:
    """Return the course of a simulation in equal spans; `depths` are the most batches that a server
    has under way.
    """
    edges = np.linspace(0.0, result.end_s, SPANS + 1)
    batches = result.batches
    rounds = result.rounds
    span_s = result.end_s / SPANS
    started_s = batches["started_s"]
    verified = np.isfinite(rounds["started_s"])
    answered = rounds["answered_s"] < result.end_s
    tokens = _sums(edges, rounds["answered_s"][answered], rounds["committed"][answered])
    by_server = zip(_by_server(batches, len(depths)), depths, strict=True)
    busy_s = sum((_busy_s(edges, own, depth) / depth for own, depth in by_server), np.zeros(SPANS))
    return TimeSeries(
        at_s=((edges[1:] + edges[:-1]) / 2).tolist(),
        draft_length=_means(edges, rounds["started_s"][verified], rounds["submitted"][verified]),
        batch_size=_means(edges, started_s, batches["size"]),
        left_waiting=_means(edges, started_s, batches["left_waiting"]),
        load=(busy_s / span_s / len(depths)).tolist(),
        tokens_per_s=(tokens / span_s).tolist(),
    )


def _by_server(batches: Table, servers: int) -> Iterator[Table]:
    """Yield the batches of each server."""
    own = servers_of(batches)
    for index in range(servers):
        yield {name: column[own == index] for name, column in batches.items()}


def _sums(edges: Floats, at_s: Floats, values: Floats) -> Floats:
    sums: Floats = np.histogram(at_s, edges, weights=values)[0].astype(np.float64)
    return sums


def _means(edges: Floats, at_s: Floats, values: Floats) -> list[float | None]:
    sums = _sums(edges, at_s, values)
    counts = np.histogram(at_s, edges)[0]
    return [
        total / count if count else None
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]


def _busy_s(edges: Floats, batches: Table, depth: int) -> Floats:
    """Return the seconds of one server's batches in each span, of which up to `depth` are under way
    at a time.
    """
    if not len(batches["started_s"]):
        return np.zeros(len(edges) - 1)
    # Busy time up to each edge: the batches begun by then in full, less what the last of them still
    # have to run.
    total_s = np.concatenate([[0.0], np.cumsum(batches["ended_s"] - batches["started_s"])])
    begun = np.searchsorted(batches["started_s"], edges, side="right")
    remaining_s = np.zeros(len(edges))
    for last in range(1, depth + 1):
        ended_s = batches["ended_s"][np.maximum(begun - last, 0)]
        remaining_s += np.where(begun >= last, np.maximum(0.0, ended_s - edges), 0.0)
    busy_s: Floats = np.diff(total_s[begun] - remaining_s)
    return busy_s


COMPUTE_DOMINANT = 1.5
"""A missed deadline is attributed to its own batch if that took so many times the moving mean
(WISP, Fig. 8).
"""


def compute_metrics(
    scenario: Scenario, result: SimulationResult, objective: Objective = "speed", window: int = 50
) -> Figures:
    """Return the metrics of a simulation after its warm-up.

    `window` is the number of batches in the moving mean of verification time, by which missed deadlines are attributed.
    """
    responses = _Responses(scenario, result, objective)
    rounds = _Rounds(scenario, result, responses)
    all_responses = np.ones(len(responses.slo), dtype=bool)
    all_rounds = np.ones(len(rounds.slo), dtype=bool)
    classes: dict[str, ClassFigures[Real]] = {}
    for index, (name, speed) in enumerate(
        zip(scenario.slo.names, scenario.slo.speeds, strict=True)
    ):
        group = _group_metrics(responses, rounds, responses.slo == index, rounds.slo == index)
        classes[name] = ClassFigures(**structs.asdict(group), promised_speed=speed)
    kinds = {
        kind.name: _group_metrics(responses, rounds, responses.kind == index, rounds.kind == index)
        for index, kind in enumerate(scenario.kinds)
        if len(scenario.kinds) > 1
    }
    drift = throughput_drift(scenario, result)
    return ServingFigures(
        overall=_group_metrics(responses, rounds, all_responses, all_rounds),
        classes=classes,
        kinds=kinds,
        violations=_attribute_misses(rounds, result, window),
        server=server_metrics(scenario, result),
        steady=SteadyState(
            drift=drift,
            steady=drift is not None and abs(drift) <= STEADY_WITHIN,
            warm_up_left_s=max(0.0, warm_up_end_s(result) - scenario.warmup_s),
        ),
        over_time=time_series(result, [scenario.depth(server) for server in scenario.pool]),
        cost=cost(scenario, result),
        pool=pool_metrics(scenario, result),
        device_wait_share=device_wait_share(result) if scenario.arrivals.is_open else None,
    )


def device_wait_share(result: SimulationResult) -> float:
    """Return the share of the time of all responses for which they waited for their device to
    answer the one before.

    A response lasts from its arrival on. Those that have not ended last until the end of the
    simulation.
    """
    table = result.responses
    order = np.lexsort((table["start_s"], table["client"]))
    client, start_s = table["client"][order], table["start_s"][order]
    end_s = np.minimum(table["end_s"][order], result.end_s)
    same = client[1:] == client[:-1]
    waited_s = np.maximum(0.0, end_s[:-1] - start_s[1:])[same]
    return float(waited_s.sum() / lasted_s) if (lasted_s := float((end_s - start_s).sum())) else 0.0


ALL = "all"
"""Names all classes together among the latencies by class."""


def latencies_by_class(
    scenario: Scenario, result: SimulationResult
) -> dict[str, ResponseLatencies[Real]]:
    """Return the latencies of all responses together and, where several speeds are promised, by
    class.
    """
    responses = _Responses(scenario, result, "speed")
    rounds = rows_after(_with_gaps(scenario, result), "arrived_s", scenario.warmup_s)
    every = np.ones(len(rounds["slo"]), dtype=bool)
    by_class = {ALL: _latencies(responses, rounds, every, responses.finished)}
    names = scenario.slo.names
    for index, name in enumerate(names if len(names) > 1 else ()):
        finished = responses.finished & (responses.slo == index)
        by_class[name] = _latencies(responses, rounds, rounds["slo"] == index, finished)
    return by_class


def _with_gaps(scenario: Scenario, result: SimulationResult) -> Table:
    """Return the rounds with `gap_s`: the seconds since the arrival before of the same response,
    NaN without one.

    Where the server drafts, tokens stream over a link that delays all of them alike, so that ends
    of verifications stand for arrivals.
    """
    rounds = result.rounds
    arrived_s = rounds["answered_s" if scenario.system.drafting == "edge" else "ended_s"]
    order = np.lexsort((arrived_s, rounds["response"], rounds["client"]))
    seen = arrived_s[order] <= result.end_s
    same = (
        (np.diff(rounds["client"][order]) == 0)
        & (np.diff(rounds["response"][order]) == 0)
        & seen[1:]
    )
    gap_s = np.full(len(order), np.nan)
    gap_s[order[1:][same]] = arrived_s[order[1:][same]] - arrived_s[order[:-1][same]]
    return {**rounds, "gap_s": gap_s}


def tail_of_gaps(scenario: Scenario, result: SimulationResult) -> dict[str, Interval]:
    """Return the 99th percentile of the time between tokens in seconds, with its 95% interval: of
    all devices and, if there are several, of each class.

    A unit is a stretch of the measured time, since gaps of one moment share their batches. Groups without gaps are left
    out.
    """
    table = rows_after(_with_gaps(scenario, result), "arrived_s", scenario.warmup_s)
    known = np.isfinite(table["gap_s"])
    tokens = np.maximum(1, table["committed"][known].astype(np.int64))
    gaps_s = np.repeat(table["gap_s"][known] / tokens, tokens)
    part = (table["answered_s"][known] - scenario.warmup_s) / (result.end_s - scenario.warmup_s)
    stretches = np.repeat((STRETCHES * part).astype(np.int64).clip(0, STRETCHES - 1), tokens)
    slo = np.repeat(table["slo"][known].astype(np.int64), tokens)
    groups = {"all": np.ones(len(slo), dtype=bool)}
    if len(scenario.slo.names) > 1:
        groups |= {name: slo == index for index, name in enumerate(scenario.slo.names)}
    tails = {
        name: p99(gaps_s[group], stretches[group]) for name, group in groups.items() if group.any()
    }
    return {name: Interval(value, *(bounds or ())) for name, (value, bounds) in tails.items()}


def slo_violations(
    scenario: Scenario, result: SimulationResult, objective: Objective = "speed"
) -> tuple[Mask, Integers]:
    """Return, for each response that fell due, in order of their ends, if it violated its SLO, and
    its class.
    """
    responses = _Responses(scenario, result, objective)
    due = responses.owed > 0
    return responses.violated[due], responses.slo[due].astype(np.int64)


def due_lateness(
    scenario: Scenario, result: SimulationResult, objective: Objective = "speed"
) -> tuple[Floats, float | None]:
    """Return the lateness of each response that fell due, in order of their ends, and their mean
    seconds.

    Lateness is the time that a response took over the time that it may take, infinite where it is
    not there yet; above 1 the promise is broken. The mean counts an unfinished response as long as
    it has lasted; it is None without responses.
    """
    responses = _Responses(scenario, result, objective)
    due = responses.owed > 0
    lasted_s = np.minimum(responses.end_s[due], result.end_s) - responses.start_s[due]
    return responses.lateness[due], mean(lasted_s)


class _Responses:
    """Responses, and how often each was `owed`: began after the warm-up and fell due before the
    end, finished or not.

    A response that is not there after k times its allowed time is owed k times. The violation rate
    counts it once (WISP, Eq. 20), so that a starved device counts the less the longer it waits;
    `starved_rate` counts it k times.
    """

    def __init__(self, scenario: Scenario, result: SimulationResult, objective: Objective) -> None:
        table = result.responses
        self.slo = table["slo"]
        self.tokens = table["tokens"]
        self.kind = _kinds(scenario, table)
        self.start_s = table["start_s"]
        self.first_s = table["first_s"]
        self.end_s = table["end_s"]
        speeds = np.asarray(scenario.slo.speeds)[self.slo.astype(int)]
        began_s, tokens = (
            (self.start_s, self.tokens) if objective == "speed" else (self.first_s, self.tokens - 1)
        )
        allowed_s = np.maximum(tokens / speeds, 1e-9)
        self.violated = self.end_s > began_s + allowed_s
        self.lateness = np.full(len(self.end_s), np.inf)
        ended = np.isfinite(self.end_s)
        self.lateness[ended] = (self.end_s[ended] - began_s[ended]) / allowed_s[ended]
        self.owed = _times_owed(
            began_s, allowed_s, self.end_s, self.violated, scenario.warmup_s, result.end_s
        )
        self.finished = (self.end_s <= result.end_s) & (self.start_s >= scenario.warmup_s)
        self.key = _keys(table["client"], _order_of_client(table))
        self.window_s = result.end_s - scenario.warmup_s


class _Rounds:
    """Rounds that reached the server after the warm-up; those whose deadline lies before the end
    are `judged`.

    `due` are those of responses that fell due, and `good` those among them whose response kept its promise.
    """

    def __init__(self, scenario: Scenario, result: SimulationResult, responses: _Responses) -> None:
        table = rows_after(_with_gaps(scenario, result), "arrived_s", scenario.warmup_s)
        self.table = table
        self.slo = table["slo"]
        self.kind = _kinds(scenario, table)
        keys, due = _keys(table["client"], table["response"]), responses.owed > 0
        self.due = np.isin(keys, responses.key[due])
        self.good = np.isin(keys, responses.key[due & ~responses.violated])
        self.verified = np.isfinite(table["ended_s"])
        self.judged = table["deadline_s"] <= result.end_s
        self.missed = table["ended_s"] > table["deadline_s"]
        began_s = table["sent_s"] - table["draft_s"]
        speeds = np.asarray(scenario.slo.speeds)[self.slo.astype(int)]
        self.slow = (table["accepted"] + 1) / (table["answered_s"] - began_s) < speeds
        self.queue_s = table["started_s"][self.verified] - table["arrived_s"][self.verified]
        self.verify_s = table["ended_s"][self.verified] - table["started_s"][self.verified]
        # The latency model is asked once for each shape: many rounds share one.
        verified = {name: column[self.verified] for name, column in table.items()}
        servers = verifying_servers(result, verified)
        new, cached = (verified[name].astype(np.int64) for name in ("new", "cached"))
        # One number for each shape, since numbers are sorted far faster than rows of an array.
        pool = scenario.pool
        widest = 1 + int(cached.max(initial=0))
        numbers = (new * widest + cached) * len(pool) + servers
        _, first, index = np.unique(numbers, return_index=True, return_inverse=True)
        shapes = zip(*(column[first].tolist() for column in (new, cached, servers)), strict=True)
        isolated_s = [
            pool[server].deployment.verifier.pass_s(((new, cached),))
            for new, cached, server in shapes
        ]
        self.interference = self.verify_s / np.asarray(isolated_s)[index]


def _order_of_client(responses: Table) -> Integers:
    """Return the place of each response among those of its device, from 0, as rounds name
    theirs.
    """
    order = np.lexsort((responses["start_s"], responses["client"]))
    client = responses["client"][order]
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - np.searchsorted(client, client)
    return places


def _keys(client: Floats, place: Floats | Integers) -> Integers:
    """Return a number for each response of each device."""
    return client.astype(np.int64) << 32 | place.astype(np.int64)


def _kinds(scenario: Scenario, table: Table) -> Integers:
    """Return the kind of each row's device."""
    kinds: Integers = Fleet(scenario.kinds, scenario.devices).kind[table["client"].astype(int)]
    return kinds


def _group_metrics(
    responses: _Responses, rounds: _Rounds, group: Mask, group_rounds: Mask
) -> GroupFigures[Real]:
    """Return the metrics of one group, given which responses and rounds belong to it."""
    finished = responses.finished & group
    owed = responses.owed[group]
    due = group & (responses.owed > 0)
    judged_rounds = rounds.judged & group_rounds
    verified = group_rounds[rounds.verified]
    committed, submitted = (rounds.table[name][group_rounds] for name in ("committed", "submitted"))
    duration_s = responses.end_s[finished] - responses.start_s[finished]
    latencies = _latencies(responses, rounds.table, group_rounds, finished)
    throughput = float(committed.sum()) / responses.window_s
    # Of responses that are not due yet nobody knows if they will be kept: they count as those that
    # are.
    kept = ratio_of_sums(
        *(committed[among[group_rounds]].sum() for among in (rounds.good, rounds.due))
    )
    return GroupFigures(
        ttft_s=latencies.ttft_s,
        tpot_s=latencies.tpot_s,
        icl_s=latencies.icl_s,
        itl_s=latencies.itl_s,
        response_s=latencies.response_s,
        responses=int(due.sum()),
        violation_rate=_share(responses.violated, due),
        starved_rate=ratio_of_sums((owed * responses.violated[group]).sum(), owed.sum()),
        rounds=int(judged_rounds.sum()),
        deadline_miss_rate=_share(rounds.missed, judged_rounds),
        slow_round_rate=_share(rounds.slow, judged_rounds),
        throughput=throughput,
        goodput=throughput if kept is None else throughput * kept,
        acceptance_length=mean(committed[rounds.verified[group_rounds]]),
        submitted_per_verify=mean(submitted[rounds.verified[group_rounds]]),
        speed=distribution(responses.tokens[finished] / duration_s),
        queue_s=distribution(rounds.queue_s[verified]),
        verify_s=distribution(rounds.verify_s[verified]),
        interference=distribution(rounds.interference[verified]),
    )


def _latencies(
    responses: _Responses, rounds: Table, group: Mask, finished: Mask
) -> ResponseLatencies[Real]:
    """Return the latencies of finished responses, and of the gaps between arrivals of a group of
    rounds that are known.
    """
    known = group & np.isfinite(rounds["gap_s"])
    gap_s = rounds["gap_s"][known]
    tokens = rounds["committed"][known].astype(np.int64)
    several = finished & (responses.tokens > 1)
    tpot_s = (responses.end_s[several] - responses.first_s[several]) / (
        responses.tokens[several] - 1
    )
    return ResponseLatencies(
        ttft_s=distribution(responses.first_s[finished] - responses.start_s[finished]),
        tpot_s=distribution(tpot_s),
        icl_s=distribution(gap_s),
        itl_s=distribution(np.repeat(gap_s / np.maximum(1, tokens), tokens)),
        response_s=distribution(responses.end_s[finished] - responses.start_s[finished]),
    )


def _times_owed(
    began_s: Floats,
    allowed_s: Floats,
    end_s: Floats,
    violated: Mask,
    warmup_s: float,
    until_s: float,
) -> Integers:
    """Return how often each response falls due until it is there, in spans that began after the
    warm-up.

    A span that began during the warm-up was partly spent on a server that was still filling up:
    like `finished`, it does not count, although it ends after the warm-up. Later spans of the same
    response do.
    """
    begun = began_s < until_s
    duration_s = np.minimum(end_s, until_s)[begun] - began_s[begun]
    is_due = began_s[begun] + allowed_s[begun] <= until_s
    due = np.maximum(np.floor(duration_s / allowed_s[begun]), is_due)
    due = np.where(violated[begun], due, is_due)
    during_warm_up = np.maximum(np.ceil((warmup_s - began_s[begun]) / allowed_s[begun]), 0)
    owed = np.zeros(len(began_s), dtype=np.int64)
    owed[begun] = np.maximum(due - during_warm_up, 0)
    return owed


def _attribute_misses(rounds: _Rounds, result: SimulationResult, window: int) -> MissCauses[Real]:
    """Return how many verified rounds missed their deadline because of their own batch, and because
    of the queue.
    """
    batch_s = result.batches["ended_s"] - result.batches["started_s"]
    servers = servers_of(result.batches)
    moving_mean_s = np.empty_like(batch_s)
    for server in np.unique(servers):
        own = servers == server
        total_s = np.concatenate([[0.0], np.cumsum(batch_s[own])])
        ends = np.arange(1, int(own.sum()) + 1)
        starts = np.maximum(0, ends - window)
        moving_mean_s[own] = (total_s[ends] - total_s[starts]) / (ends - starts)
    ratio = batch_s / moving_mean_s
    missed = rounds.verified & rounds.judged & rounds.missed
    compute = int((ratio[rounds.table["batch"][missed].astype(int)] > COMPUTE_DOMINANT).sum())
    return MissCauses(window, compute, int(missed.sum()) - compute)


def _share(holds: Mask, among: Mask) -> float | None:
    return float(holds[among].mean()) if among.any() else None
