"""Metrics of the server and of cost; means and distributions after the warm-up."""

from typing import TypedDict

import numpy as np

from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.fleet import Fleet
from specbench_kit.serving.result import SimulationResult, Table
from specbench_kit.serving.scenario import Scenario


class Distribution(TypedDict):
    """Mean and percentiles of a quantity."""

    mean: float
    p50: float
    p95: float
    p99: float


def server_metrics(scenario: Scenario, result: SimulationResult) -> dict[str, float | int | Distribution | None]:
    """Return load, batches, evictions and idle time of the server."""
    batches = rows_after(result.batches, "started_s", scenario.warmup_s)
    expected_s, true_s = (batches[name] - batches["started_s"] for name in ("expected_s", "ended_s"))
    return {
        "utilisation": _busy_s(batches, result.end_s) / (result.end_s - scenario.warmup_s),
        "batches": len(batches["size"]),
        "batch_size": distribution(batches["size"]),
        "left_waiting": distribution(batches["left_waiting"]),
        "estimate_over_true": mean(expected_s / true_s),
        "refusals": result.refusals,
        "idle_while_waiting_s": result.idle_waiting_s,
        "evictions": result.evictions,
        "evictions_per_response": result.evictions / max(1, int(np.isfinite(result.responses["end_s"]).sum())),
        "peak_kv_tokens": result.peak_kv_tokens,
    }


def cost(scenario: Scenario, result: SimulationResult) -> dict[str, float | None]:
    """Return prices and energy after the warm-up.

    `price` counts the server all the time and devices while they draft; `rented_price` counts devices all the time.
    If the server drafts, devices cost nothing.
    """
    rounds = rows_after(result.rounds, "sent_s", scenario.warmup_s)
    hours = (result.end_s - scenario.warmup_s) / 3600
    per_hour, server = Fleet(scenario.kinds, scenario.devices).price_per_hour, scenario.deployment.verifier
    drafting = float((rounds["draft_s"] * per_hour[rounds["client"].astype(int)]).sum()) / 3600
    price = server.price_per_hour * hours + drafting
    devices_per_hour = float(per_hour.sum()) if scenario.system.drafting == "edge" else 0.0
    rented_price = hours * (server.price_per_hour + devices_per_hour)
    tokens = float(rounds["committed"].sum())
    energy_j = _energy_j(scenario, result, rounds)
    return {
        "energy_j": energy_j,
        "joules_per_token": energy_j / tokens if energy_j and tokens else None,
        "edge_busy_s": float(rounds["draft_s"].sum()),
        "price": price,
        "tokens_per_price": tokens / price if price else None,
        "rented_price": rented_price,
        "tokens_per_rented_price": tokens / rented_price if rented_price else None,
    }


def _energy_j(scenario: Scenario, result: SimulationResult, rounds: Table) -> float | None:
    """Return the energy of server and devices while they work; None if the card of one of them states no power."""
    power_w, server_w = Fleet(scenario.kinds, scenario.devices).power_w, scenario.deployment.verifier.power_w
    on_edge = scenario.system.drafting == "edge"
    if not server_w or (on_edge and not power_w.all()):
        return None
    batches = rows_after(result.batches, "started_s", scenario.warmup_s)
    drafting_j = float((rounds["draft_s"] * power_w[rounds["client"].astype(int)]).sum()) if on_edge else 0.0
    return server_w * _busy_s(batches, result.end_s) + drafting_j


def _busy_s(batches: Table, end_s: float) -> float:
    return float((np.minimum(batches["ended_s"], end_s) - batches["started_s"]).sum())


def rows_after(table: Table, time: str, warmup_s: float) -> Table:
    """Return the rows whose column `time` lies after the warm-up."""
    counted = table[time] >= warmup_s
    return {name: column[counted] for name, column in table.items()}


def mean(values: Floats) -> float | None:
    """Return the mean, or None of no values."""
    return float(values.mean()) if len(values) else None


def distribution(values: Floats) -> Distribution | None:
    """Return mean and percentiles, or None of no values."""
    if not len(values):
        return None
    p50, p95, p99 = map(float, np.quantile(values, [0.5, 0.95, 0.99]))
    return {"mean": float(values.mean()), "p50": p50, "p95": p95, "p99": p99}
