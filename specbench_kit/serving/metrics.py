"""Figures of merit of one simulation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.serving.fleet import Fleet
from specbench_kit.serving.options import Objective
from specbench_kit.serving.result import Column, SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.steady_state import STEADY_WITHIN, drift, warm_up_s
from specbench_kit.serving.time_series import over_time

"""What a promised speed is held against: tokens over the whole response, or time per token after the first."""
Fields = dict[str, Any]
Mask = NDArray[np.bool_]

COMPUTE_DOMINANT = 1.5
"""A violation is put down to its own batch where that takes so many times the moving mean (WISP, Fig. 8)."""


def figures(scenario: Scenario, result: SimulationResult, objective: Objective = "speed", window: int = 50) -> Fields:
    """Everything a report shows, after the warm-up; rates of nothing are None.

    `window` is how many batches the moving mean of verification time goes over.
    """
    responses, rounds = _Responses(scenario, result, objective), _Rounds(scenario, result)
    everyone = np.ones(len(responses.slo), dtype=bool), np.ones(len(rounds.slo), dtype=bool)
    classes = {
        name: {"promised_speed": speed, **_group(responses, rounds, responses.slo == place, rounds.slo == place)}
        for place, (name, speed) in enumerate(zip(scenario.slo.names, scenario.slo.speeds, strict=True))
    }
    kinds = {
        kind.name: _group(responses, rounds, responses.kind == place, rounds.kind == place)
        for place, kind in enumerate(scenario.kinds)
        if len(scenario.kinds) > 1
    }
    return {
        "overall": _group(responses, rounds, *everyone),
        "classes": classes,
        "kinds": kinds,
        "violations": _attribution(rounds, result, window),
        "server": _server(scenario, result),
        "steady": _steady(scenario, result),
        "over_time": over_time(result),
        "cost": _cost(scenario, result),
    }


def violations(
    scenario: Scenario, result: SimulationResult, objective: Objective = "speed"
) -> tuple[Mask, NDArray[np.int64]]:
    """Of each response that fell due, in the order of their ends, whether the promise was broken, and its class."""
    responses = _Responses(scenario, result, objective)
    due = responses.owed > 0
    return responses.violated[due], responses.slo[due].astype(np.int64)


class _Responses:
    """Responses, and how many of each are `owed`: begun after the warm-up and due before the end, finished or not.

    One that is not there after k times the time that it should take is owed k times. The violation rate counts it
    once (WISP, Eq. 20), so that a starved device counts the less, the longer it waits; `starved_rate` counts it k
    times.
    """

    def __init__(self, scenario: Scenario, result: SimulationResult, objective: Objective) -> None:
        table = result.responses
        self.slo, self.tokens = table["slo"], table["tokens"]
        self.kind = _kinds(scenario, table)
        self.start_s, self.first_s, self.end_s = table["start_s"], table["first_s"], table["end_s"]
        speeds = np.asarray(scenario.slo.speeds)[self.slo.astype(int)]
        began_s, owed = (self.start_s, self.tokens) if objective == "speed" else (self.first_s, self.tokens - 1)
        allowed_s = np.maximum(owed / speeds, 1e-9)
        self.violated = self.end_s > began_s + allowed_s
        self.owed = _owed(began_s, allowed_s, self.end_s, self.violated, scenario.warmup_s, result.end_s)
        self.finished = (self.end_s <= result.end_s) & (self.start_s >= scenario.warmup_s)
        self.window_s = result.end_s - scenario.warmup_s


class _Rounds:
    """Rounds that reached the server after the warm-up; those whose deadline came before the end are judged."""

    def __init__(self, scenario: Scenario, result: SimulationResult) -> None:
        table = _after(result.rounds, "arrived_s", scenario.warmup_s)
        self.table, self.slo, self.kind = table, table["slo"], _kinds(scenario, table)
        self.verified = np.isfinite(table["ended_s"])
        self.judged = table["deadline_s"] <= result.end_s
        self.missed = table["ended_s"] > table["deadline_s"]
        began_s = table["sent_s"] - table["draft_s"]
        speeds = np.asarray(scenario.slo.speeds)[self.slo.astype(int)]
        self.slow = (table["accepted"] + 1) / (table["answered_s"] - began_s) < speeds
        self.queue_s = table["started_s"][self.verified] - table["arrived_s"][self.verified]
        self.verify_s = table["ended_s"][self.verified] - table["started_s"][self.verified]
        self.interference = self.verify_s / _alone_s(scenario, table, self.verified)


def _kinds(scenario: Scenario, table: dict[str, Column]) -> NDArray[Any]:
    """The kind of each row's device."""
    kinds: NDArray[Any] = Fleet(scenario.kinds, scenario.devices).kind[table["client"].astype(int)]
    return kinds


def _group(responses: _Responses, rounds: _Rounds, of: Mask, rounds_of: Mask) -> Fields:
    """The figures of one class, or of all."""
    finished, owed = responses.finished & of, responses.owed[of]
    due = of & (responses.owed > 0)
    judged_rounds, verified = rounds.judged & rounds_of, rounds_of[rounds.verified]
    met = finished & ~responses.violated
    committed, submitted = (rounds.table[name][rounds_of] for name in ("committed", "submitted"))
    lasted_s = responses.end_s[finished] - responses.start_s[finished]
    return {
        "responses": int(due.sum()),
        "violation_rate": _share(responses.violated, due),
        "starved_rate": ratio_of_sums((owed * responses.violated[of]).sum(), owed.sum()),
        "rounds": int(judged_rounds.sum()),
        "deadline_miss_rate": _share(rounds.missed, judged_rounds),
        "slow_round_rate": _share(rounds.slow, judged_rounds),
        "throughput": float(committed.sum()) / responses.window_s,
        "goodput": float(responses.tokens[met].sum()) / responses.window_s,
        "acceptance_length": _mean(committed[rounds.verified[rounds_of]]),
        "submitted_per_verify": _mean(submitted[rounds.verified[rounds_of]]),
        "speed": _spread(responses.tokens[finished] / lasted_s),
        "ttft_s": _spread(responses.first_s[finished] - responses.start_s[finished]),
        "tpot_s": _spread(_tpot(responses, finished)),
        "queue_s": _spread(rounds.queue_s[verified]),
        "verify_s": _spread(rounds.verify_s[verified]),
        "interference": _spread(rounds.interference[verified]),
    }


def _owed(
    began_s: Column, allowed_s: Column, end_s: Column, violated: Mask, warmup_s: float, until_s: float
) -> NDArray[np.int64]:
    """Times that each response falls due before the end, until it is there, in spans that began after the warm-up.

    A span that had begun by then was partly spent on a server that was still filling up: like `finished`, it does not
    count, although the response falls due after the warm-up. Of one that is owed several times the later spans do.
    """
    begun = began_s < until_s
    lasted_s = np.minimum(end_s, until_s)[begun] - began_s[begun]
    due = np.maximum(np.floor(lasted_s / allowed_s[begun]), began_s[begun] + allowed_s[begun] <= until_s)
    due = np.where(violated[begun], due, began_s[begun] + allowed_s[begun] <= until_s)
    before = np.maximum(np.ceil((warmup_s - began_s[begun]) / allowed_s[begun]), 0)
    owed = np.zeros(len(began_s), dtype=np.int64)
    owed[begun] = np.maximum(due - before, 0)
    return owed


def _tpot(responses: _Responses, of: Mask) -> Column:
    several = of & (responses.tokens > 1)
    gaps_s: Column = (responses.end_s[several] - responses.first_s[several]) / (responses.tokens[several] - 1)
    return gaps_s


def _attribution(rounds: _Rounds, result: SimulationResult, window: int) -> Fields:
    """Missed deadlines of verified rounds by what kept them: their own batch, or the queue before it."""
    batches = result.batches
    took_s = batches["ended_s"] - batches["started_s"]
    ratio = took_s / _moving_mean(took_s, window)
    missed = rounds.verified & rounds.judged & rounds.missed
    compute = int((ratio[rounds.table["batch"][missed].astype(int)] > COMPUTE_DOMINANT).sum())
    total = int(missed.sum())
    return {"window": window, "compute_dominant": compute, "queue_dominant": total - compute}


def _moving_mean(values: Column, window: int) -> Column:
    """Of each value and those before it, `window` at most."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    mean: Column = (total[ends] - total[starts]) / (ends - starts)
    return mean


def _alone_s(scenario: Scenario, table: dict[str, Column], of: Mask) -> Column:
    """Seconds that rounds would take by themselves; each shape is asked for once."""
    shapes = np.stack([table["new"][of], table["cached"][of]], axis=1).astype(int)
    unique, places = np.unique(shapes, axis=0, return_inverse=True)
    seconds = [scenario.deployment.verifier.pass_s(((int(new), int(cached)),)) for new, cached in unique]
    alone_s: Column = np.asarray(seconds)[places.ravel()]
    return alone_s


def _server(scenario: Scenario, result: SimulationResult) -> Fields:
    batches = _after(result.batches, "started_s", scenario.warmup_s)
    busy_s = np.minimum(batches["ended_s"], result.end_s) - batches["started_s"]
    return {
        "utilisation": float(busy_s.sum()) / (result.end_s - scenario.warmup_s),
        "batches": len(busy_s),
        "batch_size": _spread(batches["size"]),
        "left_waiting": _spread(batches["left_waiting"]),
        "estimate_over_true": _mean(
            (batches["expected_s"] - batches["started_s"]) / (batches["ended_s"] - batches["started_s"])
        ),
        "refusals": result.refusals,
        "idle_while_waiting_s": result.idle_waiting_s,
        "evictions": result.evictions,
        "evictions_per_response": result.evictions / max(1, int(np.isfinite(result.responses["end_s"]).sum())),
        "peak_kv_tokens": result.peak_kv_tokens,
    }


def _steady(scenario: Scenario, result: SimulationResult) -> Fields:
    """Whether both halves of what counts commit equally many tokens per second, and the end of the warm-up."""
    found = drift(scenario, result)
    steady = found is not None and abs(found) <= STEADY_WITHIN
    return {"drift": found, "steady": steady, "warm_up_left_s": max(0.0, warm_up_s(result) - scenario.warmup_s)}


def _cost(scenario: Scenario, result: SimulationResult) -> Fields:
    """Price of the server's time and of the devices', over what counts: of these while they draft, and while rented.

    A device that drafts is rented the whole time; where the server drafts, the device has no part in it.
    """
    rounds = _after(result.rounds, "sent_s", scenario.warmup_s)
    hours = (result.end_s - scenario.warmup_s) / 3600
    edge_busy_s = float(rounds["draft_s"].sum())
    per_hour, of_server = Fleet(scenario.kinds, scenario.devices).price_per_hour, scenario.deployment.verifier
    drafting = float((rounds["draft_s"] * per_hour[rounds["client"].astype(int)]).sum()) / 3600
    price = of_server.price_per_hour * hours + drafting
    rented = float(per_hour.sum()) if scenario.system.drafting == "edge" else 0.0
    whole = hours * (of_server.price_per_hour + rented)
    tokens = float(rounds["committed"].sum())
    energy_j = _energy_j(scenario, result, rounds)
    return {
        "energy_j": energy_j,
        "joules_per_token": energy_j / tokens if energy_j and tokens else None,
        "edge_busy_s": edge_busy_s,
        "price": price,
        "tokens_per_price": tokens / price if price else None,
        "rented_price": whole,
        "tokens_per_rented_price": tokens / whole if whole else None,
    }


def _energy_j(scenario: Scenario, result: SimulationResult, rounds: dict[str, Column]) -> float | None:
    """At the power that the cards state, of server and devices while they work; None where one of them states none."""
    power_w, server_w = Fleet(scenario.kinds, scenario.devices).power_w, scenario.deployment.verifier.power_w
    on_edge = scenario.system.drafting == "edge"
    if not server_w or (on_edge and not power_w.all()):
        return None
    batches = _after(result.batches, "started_s", scenario.warmup_s)
    busy_s = float((np.minimum(batches["ended_s"], result.end_s) - batches["started_s"]).sum())
    drafting_j = float((rounds["draft_s"] * power_w[rounds["client"].astype(int)]).sum()) if on_edge else 0.0
    return server_w * busy_s + drafting_j


def _after(table: dict[str, Column], time: str, warmup_s: float) -> dict[str, Column]:
    of = table[time] >= warmup_s
    return {name: column[of] for name, column in table.items()}


def _share(what: Mask, among: Mask) -> float | None:
    return float(what[among].mean()) if among.any() else None


def _mean(values: Column) -> float | None:
    return float(values.mean()) if len(values) else None


def _spread(values: Column) -> Fields | None:
    """Mean and percentiles."""
    if not len(values):
        return None
    places = np.quantile(values, [0.5, 0.95, 0.99])
    return {"mean": float(values.mean()), **dict(zip(("p50", "p95", "p99"), map(float, places), strict=True))}
