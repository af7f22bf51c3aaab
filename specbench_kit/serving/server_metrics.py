"""The load and the cost of a simulation's servers after the warm-up, and checks that they were in a
steady state.
"""

from math import sqrt

import numpy as np

from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.figures import Real, ServerLoad, ServerShare, ServingCost
from specbench_kit.serving.fleet import Fleet
from specbench_kit.serving.result import SimulationResult, Table
from specbench_kit.serving.scenario import Scenario


def pool_metrics(scenario: Scenario, result: SimulationResult) -> dict[str, ServerShare[Real]]:
    """Return what each server of a pool does after the warm-up, by name; empty for a single one
    that never fails.
    """
    if result.pool is None:
        return {}
    batches = rows_after(result.batches, "started_s", scenario.warmup_s)
    rounds = rows_after(result.rounds, "started_s", scenario.warmup_s)
    rounds = {name: column[np.isfinite(rounds["started_s"])] for name, column in rounds.items()}
    verifies = verifying_servers(result, rounds)
    window_s = result.end_s - scenario.warmup_s
    servers: dict[str, ServerShare[Real]] = {}
    for index, server in enumerate(scenario.pool):
        own = _of_server(batches, index)
        here = verifies == index
        tokens = rounds["committed"]
        servers[server.name] = ServerShare(
            utilisation=_busy_s(scenario, own, result.end_s) / window_s,
            rounds_share=ratio_of_sums(here.sum(), len(here)),
            tokens_share=ratio_of_sums(tokens[here].sum(), tokens.sum()),
            batches=len(own["size"]),
            batch_size=mean(own["size"]),
            away_s=sum(
                max(0.0, min(outage.to_s, result.end_s) - max(outage.from_s, scenario.warmup_s))
                for outage in scenario.outages
                if outage.server == index
            ),
            moved=result.pool.moved[index],
            lost=result.pool.lost[index],
        )
    return servers


def servers_of(batches: Table) -> Integers:
    """Return the index of each batch's server."""
    if "server" not in batches:
        return np.zeros(len(batches["size"]), dtype=np.int64)
    return batches["server"].astype(np.int64)


def _of_server(batches: Table, index: int) -> Table:
    here = servers_of(batches) == index
    return {name: column[here] for name, column in batches.items()}


def verifying_servers(result: SimulationResult, verified: Table) -> Integers:
    """Return the index of the server of each of the rounds, all of which are verified."""
    return servers_of(result.batches)[verified["batch"].astype(np.int64)]


def server_metrics(scenario: Scenario, result: SimulationResult) -> ServerLoad[Real]:
    """Return load, batches, evictions and idle time of the server."""
    batches = rows_after(result.batches, "started_s", scenario.warmup_s)
    expected_s, true_s = (
        batches[name] - batches["started_s"] for name in ("expected_s", "ended_s")
    )
    return ServerLoad(
        utilisation=_busy_s(scenario, batches, result.end_s)
        / (result.end_s - scenario.warmup_s)
        / len(scenario.pool),
        batches=len(batches["size"]),
        batch_size=distribution(batches["size"]),
        left_waiting=distribution(batches["left_waiting"]),
        estimate_over_true=mean(expected_s / true_s),
        refusals=result.refusals,
        idle_while_waiting_s=result.idle_waiting_s,
        evictions=result.evictions,
        evictions_per_response=result.evictions
        / max(1, int(np.isfinite(result.responses["end_s"]).sum())),
        peak_kv_tokens=result.peak_kv_tokens,
    )


def cost(scenario: Scenario, result: SimulationResult) -> ServingCost[Real]:
    """Return prices and energy after the warm-up; if the server drafts, devices cost nothing."""
    rounds = rows_after(result.rounds, "sent_s", scenario.warmup_s)
    hours = (result.end_s - scenario.warmup_s) / 3600
    per_hour = Fleet(scenario.kinds, scenario.devices).price_per_hour
    server_per_hour = sum(server.deployment.verifier.price_per_hour for server in scenario.pool)
    drafting = float((rounds["draft_s"] * per_hour[rounds["client"].astype(int)]).sum()) / 3600
    price = server_per_hour * hours + drafting
    devices_per_hour = float(per_hour.sum()) if scenario.system.drafting == "edge" else 0.0
    rented_price = hours * (server_per_hour + devices_per_hour)
    tokens = float(rounds["committed"].sum())
    servers_j, devices_j = _servers_j(scenario, result), _devices_j(scenario, rounds)
    energy_j = None if servers_j is None or devices_j is None else servers_j + devices_j
    per_hour_of_one = None if devices_j is None else devices_j / scenario.devices / hours
    return ServingCost(
        energy_j=energy_j,
        joules_per_token=_per(energy_j or None, tokens),
        server_joules_per_token=_per(servers_j, tokens),
        device_joules_per_token=_per(devices_j, tokens),
        joules_per_device_hour=per_hour_of_one,
        edge_busy_s=float(rounds["draft_s"].sum()),
        price=price,
        tokens_per_price=tokens / price if price else None,
        rented_price=rented_price,
        tokens_per_rented_price=tokens / rented_price if rented_price else None,
    )


def _servers_j(scenario: Scenario, result: SimulationResult) -> float | None:
    """Return the energy of the servers while they work; None if the card of one of them states no
    power.
    """
    server_w = [server.deployment.verifier.power_w for server in scenario.pool]
    if not all(server_w):
        return None
    batches = rows_after(result.batches, "started_s", scenario.warmup_s)
    return sum(
        watts * _busy_s(scenario, _of_server(batches, index), result.end_s)
        for index, watts in enumerate(server_w)
    )


def _devices_j(scenario: Scenario, rounds: Table) -> float | None:
    """Return the energy of the devices while they draft; None if they do and the card of one states
    no power.
    """
    if scenario.system.drafting != "edge":
        return 0.0
    power_w = Fleet(scenario.kinds, scenario.devices).power_w
    return (
        float((rounds["draft_s"] * power_w[rounds["client"].astype(int)]).sum())
        if power_w.all()
        else None
    )


def _per(energy_j: float | None, tokens: float) -> float | None:
    return energy_j / tokens if energy_j is not None and tokens else None


def _busy_s(scenario: Scenario, batches: Table, end_s: float) -> float:
    """Return the seconds in which servers verify; each of several batches in a pipeline has its
    share of the server.
    """
    depths = np.array([scenario.depth(server) for server in scenario.pool])[servers_of(batches)]
    return float(((np.minimum(batches["ended_s"], end_s) - batches["started_s"]) / depths).sum())


def rows_after(table: Table, time: str, warmup_s: float) -> Table:
    """Return the rows whose column `time` lies after the warm-up."""
    counted = table[time] >= warmup_s
    return {name: column[counted] for name, column in table.items()}


def mean(values: Floats) -> float | None:
    """Return the mean, or None of no values."""
    return float(values.mean()) if len(values) else None


def distribution(values: Floats) -> Percentiles[Real] | None:
    """Return mean and percentiles, or None of no values."""
    if not len(values):
        return None
    p50, p95, p99 = map(float, np.quantile(values, [0.5, 0.95, 0.99]))
    return Percentiles(float(values.mean()), p50, p95, p99)


STEADY_WITHIN = 0.05
"""Relative difference of throughput between the two halves of a run that still counts as steady."""
SPANS = 60
"""Spans into which a run is cut to find the end of its warm-up."""
SIGNIFICANT = 2.9
"""Two-sided 98% quantile of Student's t with 8 degrees of freedom: two halves of five spans."""


def throughput_drift(scenario: Scenario, result: SimulationResult) -> float | None:
    """Return the relative growth of throughput from the first to the second half after the warm-up.

    None if the first half commits nothing.
    """
    first, second = _committed(result, scenario.warmup_s, result.end_s, 2)
    return float(second / first - 1) if first else None


def is_drifting(scenario: Scenario, result: SimulationResult) -> bool:
    """Return True if the halves after the warm-up differ by more than chance explains, and by
    enough to matter.
    """
    first, second = np.split(_committed(result, scenario.warmup_s, result.end_s, 10), 2)
    if not first.sum():
        return True
    error = sqrt((first.var(ddof=1) + second.var(ddof=1)) / 5)
    difference = abs(float(second.mean() - first.mean()))
    return difference > max(STEADY_WITHIN * float(first.mean()), SIGNIFICANT * error)


def warm_up_end_s(result: SimulationResult) -> float:
    """Return the end of the warm-up, at most half of the run: what follows it has the least
    standard error.

    This is the marginal standard error rule (MSER, White 1997).
    """
    tokens = _committed(result, 0.0, result.end_s, SPANS)
    errors = [float(tokens[first:].var()) / (SPANS - first) for first in range(SPANS // 2 + 1)]
    return errors.index(min(errors)) * result.end_s / SPANS


def _committed(result: SimulationResult, start_s: float, end_s: float, spans: int) -> Floats:
    """Return the tokens committed in each of so many equal spans."""
    answered_s = result.rounds["answered_s"]
    committed = result.rounds["committed"]
    counted = (answered_s >= start_s) & (answered_s < end_s)
    edges = np.linspace(start_s, end_s, spans + 1)
    tokens: Floats = np.histogram(answered_s[counted], edges, weights=committed[counted])[0].astype(
        np.float64
    )
    return tokens
