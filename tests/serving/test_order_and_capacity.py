"""Order and capacity in cases where a fault would only shift averages."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from msgspec import structs
from report_builders import serving_figures
from scenes import DEPLOYMENT

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Endpoint
from specbench_kit.deployments.loading import find
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.arrivals import ReplayedArrivals, RequestArrival
from specbench_kit.serving.figures import Interval, SimulatedRow
from specbench_kit.serving.memory import KvCapacity, kv_capacity, verifier_profile
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.round_sources import PositionRates
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.base import BatchLimits, Queue, parse_scheduler
from specbench_kit.serving.schedulers.estimator import Estimator
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.serving.capacity import violation_interval
from specbench_kit.studies.serving.simulation_grid import GridRow, summarise

PLAIN = InteractionModel(a_s=0.01, b_compute_s=0, b_read_s=0, c_s=0.1)
"""100 ms, and 10 ms for each new token."""


def filled_queue(spec: str, requests: list[WaitingRound], limits: BatchLimits) -> Queue:
    estimator = Estimator(PLAIN)
    queue = parse_scheduler(spec).queue(estimator, limits)
    for request in requests:
        estimator.estimate(request)
        queue.add(request)
    return queue


def waiting(client: int, new: int, cached: int, tokens: float = 1.0) -> WaitingRound:
    return WaitingRound(client, new, cached, 0.0, 9.0, tokens, 9.0)


def clients(queue: Queue) -> list[int]:
    return [request.client for request in queue.next_batch(0.5).batch]


def test_running_requests_take_places_from_prompts() -> None:
    """Two of three slots are taken: one prompt is admitted, and no slot is left for the other."""
    running, prompts = [waiting(n, 1, 20) for n in (0, 1)], [waiting(n, 9, 0) for n in (2, 3)]
    queue = filled_queue("prefill-first", [*running, *prompts], BatchLimits(3))
    assert clients(queue) == [2]
    read = waiting(2, 1, 9)
    queue.estimator.estimate(read)
    queue.add(read)
    assert (clients(queue), len(queue)) == ([0, 1, 2], 1)


def test_a_session_that_lost_its_kv_goes_before_those_that_never_ran() -> None:
    queue = filled_queue("prefill-first", [waiting(0, 1, 20), waiting(1, 9, 0)], BatchLimits(1))
    evicted = waiting(5, 1, 20)
    queue.estimator.estimate(evicted)
    queue.add(evicted)
    evicted.new, evicted.cached = 21, 0
    queue.changed(evicted)
    assert len(queue) == 3
    assert [clients(queue) for _ in range(3)] == [[0], [5], [1]]


def test_utility_is_by_the_time_that_a_request_adds() -> None:
    """One token for 10 ms more goes before four for 100 ms more; alone they take 110 and 200 ms."""
    queue = filled_queue(
        "wisp-promise:guard_s=0.1,amortise=0",
        [waiting(0, 10, 0, tokens=4.0), waiting(1, 1, 0)],
        BatchLimits(1),
    )
    assert (clients(queue), clients(queue)) == ([1], [0])


def test_equal_batches_make_wilsons_interval_with_students_t() -> None:
    """Eight equal batches of 25 with one in five late: 200 independent ones, and t with seven degrees of freedom."""
    lateness = np.tile([2.0, *[0.5] * 4], 40)
    for alpha, t in ((0.05, 2.3646), (0.01, 3.4995)):
        centre = (0.2 + t**2 / 400) / (1 + t**2 / 200)
        half = t / (1 + t**2 / 200) * sqrt(0.2 * 0.8 / 200 + t**2 / (4 * 200**2))
        assert violation_interval(lateness, 20, alpha) == pytest.approx(
            (0.2, centre - half, centre + half), abs=1e-4
        )


def test_batches_that_differ_count_for_fewer_responses() -> None:
    """Batches with 0 or 2 late ones in ten take turns: their variance is 0.01 x 8 / 7, that of the mean an eighth."""
    lateness = np.concatenate([np.repeat([2.0 * (batch % 2), 0.5], [2, 8]) for batch in range(8)])
    effective, t = 0.1 * 0.9 / (0.01 * 8 / 7 / 8), 2.3646
    centre = (0.1 + t**2 / (2 * effective)) / (1 + t**2 / effective)
    assert effective == pytest.approx(63)
    assert sum(violation_interval(lateness, 8, 0.05)[1:]) / 2 == pytest.approx(centre, abs=1e-4)


def test_batches_that_are_alike_in_a_row_count_for_still_fewer() -> None:
    """Four batches with 2 late ones in ten, then four without: each is like the one before it, which widens."""
    apart = np.concatenate([np.repeat([2.0 * (batch % 2), 0.5], [2, 8]) for batch in range(8)])
    in_a_row = np.concatenate([np.repeat([2.0 * (batch < 4), 0.5], [2, 8]) for batch in range(8)])
    widths = [
        high - low
        for _, low, high in (violation_interval(lateness, 8) for lateness in (apart, in_a_row))
    ]
    assert widths[1] > 1.5 * widths[0]


def test_the_reserve_is_a_share_of_all_memory() -> None:
    """A tenth of 80 GB is reserved; 32.76 billion weights and 2 x 64 x 8 x 128 numbers a token take 2 bytes each."""
    profile = verifier_profile(find("wisp"))
    assert profile is not None
    room_bytes = kv_capacity(profile, reserved=0.1).tokens * (2 * 64 * 8 * 128 * 2)
    assert room_bytes == pytest.approx(0.9 * 80e9 - 2 * 32.76e9, rel=0.01)


def test_series_are_held_against_the_first_seed_by_seed() -> None:
    """Rates that differ by 0.1 with every seed differ by 0.1 on average; a seed without a rate is left out."""
    rates = {"first": [0.1, 0.5, None, 0.3], "second": [0.2, 0.6, 0.9, 0.4]}
    rows = []
    for name, factor in zip(rates, (1.0, 1.5), strict=True):
        by_seed = [
            serving_figures(0.0, throughput=10.0 * (n + 1) * factor, violation_rate=rate)
            for n, rate in enumerate(rates[name])
        ]
        condition = {
            "slo": "2",
            "slo_scale": 1.0,
            "estimator_factor": 1.0,
            "estimator_noise": 0.0,
            "guard_s": None,
        }
        row = SimulatedRow(
            series=name, devices=16, **condition, figures=serving_figures(Interval(0.0))
        )
        rows.append(GridRow(row, by_seed))
    (difference,) = summarise(rows).against_first
    assert difference.violation_difference is not None
    assert difference.throughput_ratio is not None
    assert structs.astuple(difference.violation_difference) == pytest.approx([0.1, 0.1, 0.1])
    assert structs.astuple(difference.throughput_ratio) == pytest.approx([1.5, 1.5, 1.5])
    assert (difference.series, difference.against) == ("second", "first")


def test_an_evicted_session_comes_back_before_one_that_never_ran() -> None:
    """Memory for 16 tokens; sessions hold 7, 10 and 13 in their rounds, times are those of the exact scene.

    Devices 0 and 1 are let in with 7 each. At 1.15 s the first grows to 10, and the second has to go, cold with 10.
    Device 2 is there from 1.3 s on, device 1 again from 1.5 s. When device 0 is done at 2.25 s there is room for one.
    """
    deployment = replace(
        DEPLOYMENT, drafter=Endpoint("edge", always(0.1)), verifier=Endpoint("server", always(0.35))
    )
    scene = Scenario(
        replace(deployment, link=Link(rtt_s=0.2)),
        systems.get("wisp-cache"),
        PositionRates((1.0, 1.0)),
        devices=3,
        slo=parse_slo("2"),
        arrivals=ReplayedArrivals(
            (RequestArrival(0.0, 5, 9), RequestArrival(0.05, 5, 6), RequestArrival(0.9, 5, 6))
        ),
        memory=KvCapacity(16, 100),
        duration_s=10.0,
        warmup_s=0.0,
    )
    result = simulate(scene)
    order = [
        (int(client), round(started_s, 6))
        for client, started_s in zip(*rounds_of(result), strict=True)
    ]
    assert order == [(0, 0.4), (1, 0.75), (0, 1.15), (0, 1.9), (1, 2.25), (2, 2.6), (2, 3.35)]
    assert (result.evictions, result.peak_kv_tokens) == (1, 14)


def rounds_of(result: SimulationResult) -> tuple[np.ndarray, np.ndarray]:
    return result.rounds["client"], result.rounds["started_s"]


def always(seconds: float) -> InteractionModel:
    return InteractionModel(0, 0, 0, seconds)
