"""Figures of merit, from tables that are small enough to check by hand, and WISP's ordering of systems."""

import numpy as np
import pytest
from nightly import nightly_except
from scenes import MIX, VERIFY, scenario

from specbench_kit.deployments.loading import find
from specbench_kit.serving.figures import is_higher
from specbench_kit.serving.metrics import (
    ALL,
    compute_metrics,
    latencies_by_class,
    slo_violations,
    tail_of_gaps,
)
from specbench_kit.serving.result import (
    BATCH_COLUMNS,
    RESPONSE_COLUMNS,
    ROUND_COLUMNS,
    SimulationResult,
)
from specbench_kit.serving.round_sources import StopRuleRates, iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems

NEVER = float("inf")
Row = dict[str, float]


def table(names: tuple[str, ...], *rows: dict[str, float]) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {name: np.array([row.get(name, 0.0) for row in rows], dtype=float) for name in names}


def result(responses: list[Row], rounds: list[Row], batches: list[Row]) -> SimulationResult:
    tables = (
        table(ROUND_COLUMNS, *rounds),
        table(RESPONSE_COLUMNS, *responses),
        table(BATCH_COLUMNS, *batches),
    )
    return SimulationResult(*tables, 100.0, 0, 0.0, 0, 0, 0)


def response(
    start_s: float, end_s: float, tokens: int = 20, first_s: float | None = None
) -> dict[str, float]:
    first_s = start_s + 1 if first_s is None else first_s
    return {"start_s": start_s, "first_s": first_s, "end_s": end_s, "tokens": tokens}


def test_a_late_response_counts_once_and_where_starved_as_often_as_it_was_owed() -> None:
    """20 tokens at 2 tokens/s are due after 10 s; the warm-up ends at 10 s, the simulation at 100 s."""
    scene = scenario(slo="1", duration_s=100.0, warmup_s=10.0)
    cases = [
        (response(20, 29), (0, 1)),
        (response(20, 31), (1, 1)),
        (response(20, 45), (2, 2)),
        (response(0, 9), (0, 0)),
        (response(0, NEVER), (9, 9)),
        (response(95, NEVER), (0, 0)),
        (response(85, NEVER), (1, 1)),
    ]
    for rows, (broken, owed) in cases:
        violated, classes = slo_violations(scene, result([rows], [], []))
        assert (violated.sum(), len(violated), len(classes)) == (broken > 0, owed > 0, owed > 0), (
            rows
        )
        starved = compute_metrics(scene, result([rows], [], [])).overall.starved_rate
        assert starved == (broken / owed if owed else None), rows
    everything = result([rows for rows, _ in cases], [], [])
    overall = compute_metrics(scene, everything).overall
    assert (overall.violation_rate, overall.starved_rate) == (
        pytest.approx(4 / 5),
        pytest.approx(13 / 14),
    )


def test_time_per_token_is_judged_from_the_first_one_on() -> None:
    scene = scenario(slo="1", duration_s=100.0, warmup_s=10.0)
    slow_start = result([response(20, 38, 21, first_s=29)], [], [])
    assert slo_violations(scene, slow_start, "speed")[0].tolist() == [True]
    assert slo_violations(scene, slow_start, "tpot")[0].tolist() == [False]


def test_goodput_is_the_share_of_the_throughput_that_came_in_time_of_what_fell_due() -> None:
    """20 tokens at 2 tokens/s are due after 10 s. Device 0 answers in time, then late, then is under way at the end.

    Device 1 begins its first response in the warm-up, so that it does not fall due; its second one never comes.
    """
    scene = scenario(slo="1", duration_s=100.0, warmup_s=10.0)
    responses = [
        {"client": 0, **response(20, 29)},
        {"client": 1, **response(5, 14)},
        {"client": 0, **response(29, 60)},
        {"client": 0, **response(95, NEVER)},
        {"client": 1, **response(70, NEVER)},
    ]
    tokens = {(0, 0): 1, (0, 1): 10, (0, 2): 100, (1, 0): 1000, (1, 1): 10000}
    rounds = [
        {
            "client": client,
            "response": number,
            "arrived_s": 50,
            "ended_s": 51,
            "answered_s": 52,
            "committed": count,
            "deadline_s": 200,
        }
        for (client, number), count in tokens.items()
    ]
    batch = {"started_s": 50, "ended_s": 51, "size": 5}
    overall = compute_metrics(scene, result(responses, rounds, [batch])).overall
    assert overall.throughput == 11111 / 90
    assert overall.goodput == pytest.approx(11111 / 90 * 1 / (1 + 10 + 10000))


@pytest.mark.parametrize("system", ["wisp", "adaspec", "centralized"])
def test_goodput_equals_the_throughput_where_no_promise_is_broken(system: str) -> None:
    kept = scenario(system, 8, slo="1tok/s", duration_s=60.0, warmup_s=10.0)
    overall = compute_metrics(kept, simulate(kept, 1)).overall
    assert overall.violation_rate == 0
    assert overall.goodput == overall.throughput > 0
    crowded = scenario(system, 400, slo="20tok/s", duration_s=60.0, warmup_s=10.0)
    overall = compute_metrics(crowded, simulate(crowded, 1)).overall
    assert overall.violation_rate is not None
    assert overall.violation_rate > 0.5
    # Tokens and responses agree about the share that is late, whatever is under way at the end.
    assert overall.goodput / overall.throughput == pytest.approx(
        1 - overall.violation_rate, abs=0.05
    )


def test_rounds_are_judged_by_their_deadline_and_by_their_speed() -> None:
    """Three accepted tokens and the bonus token in 1 s are 4 tokens/s, even if the response ends among them."""
    scene = scenario(slo="2", duration_s=100.0, warmup_s=10.0)
    base = {
        "sent_s": 20.2,
        "draft_s": 0.2,
        "arrived_s": 20.3,
        "started_s": 20.5,
        "ended_s": 20.9,
        "answered_s": 21.0,
        "new": 5,
    }
    base |= {"accepted": 3, "submitted": 4, "committed": 2, "cached": 100}
    rounds = [
        {**base, "deadline_s": 20.95},
        {**base, "deadline_s": 20.85},
        {**base, "deadline_s": 20.95, "answered_s": 21.1},
        {
            **base,
            "deadline_s": 30,
            "started_s": NEVER,
            "ended_s": NEVER,
            "answered_s": NEVER,
            "batch": -1,
        },
        {
            **base,
            "deadline_s": 130,
            "started_s": NEVER,
            "ended_s": NEVER,
            "answered_s": NEVER,
            "batch": -1,
        },
    ]
    batches = [
        {
            "started_s": 20.5,
            "ended_s": 20.9,
            "expected_s": 20.9,
            "size": 3,
            "new": 15,
            "cached": 300,
        }
    ]
    overall = compute_metrics(scene, result([], rounds, batches)).overall
    assert overall.rounds == 4
    assert overall.deadline_miss_rate == 2 / 4
    assert overall.slow_round_rate == 2 / 4
    assert overall.queue_s.mean == pytest.approx(0.2)
    assert overall.interference.mean == pytest.approx(0.4 / VERIFY.seconds([(5, 100)]))


def test_a_violation_is_put_down_to_its_batch_or_to_the_queue() -> None:
    """The third batch takes three times the mean of itself and the two before it, less than it takes alone."""
    scene = scenario(slo="2", duration_s=100.0, warmup_s=10.0)
    batches = [
        {"started_s": at, "ended_s": at + took, "size": 1}
        for at, took in ((20, 1), (22, 1), (24, 10), (40, 1))
    ]
    rounds = [
        {"arrived_s": 19.9, "started_s": batch["started_s"], "ended_s": batch["ended_s"],
         "answered_s": batch["ended_s"], "deadline_s": 20.5, "batch": number, "new": 1}
        for number, batch in enumerate(batches)
    ]  # fmt: skip
    violations = compute_metrics(scene, result([], rounds, batches)).violations
    assert (violations.compute_dominant, violations.queue_dominant) == (1, 3)


def test_itl_is_between_two_arrivals_of_one_response() -> None:
    """Tokens of a round arrive together; neither another response nor another device closes a gap."""
    scene = scenario(slo="1:0.5,2:0.5", duration_s=100.0, warmup_s=10.0)
    arrivals = [  # device, class, response, moment of arrival, committed tokens
        (0, 0, 0, 20.0, 1), (0, 0, 0, 20.5, 4), (0, 0, 0, 21.5, 2), (0, 0, 1, 30.0, 3), (0, 0, 1, 33.0, 3),
        (1, 1, 0, 20.2, 5), (1, 1, 0, 22.2, 1), (1, 1, 0, NEVER, 0), (1, 1, 1, 99.0, 1), (1, 1, 1, 101.0, 1),
    ]  # fmt: skip
    rounds = [
        {"client": client, "slo": slo, "response": number, "answered_s": at_s, "ended_s": at_s - 0.1,
         "arrived_s": 15.0, "committed": tokens, "batch": 0}
        for client, slo, number, at_s, tokens in reversed(arrivals)
    ]  # fmt: skip
    latencies = latencies_by_class(scene, result([], rounds, []))
    gaps_s = {ALL: [0.5, 1.0, 3.0, 2.0], "1": [0.5, 1.0, 3.0], "2": [2.0]}
    assert set(latencies) == set(gaps_s)
    for name, expected in gaps_s.items():
        icl_s = latencies[name].icl_s
        assert icl_s is not None
        assert (icl_s.mean, icl_s.p50) == pytest.approx((np.mean(expected), np.median(expected)))
    # Tokens of a round share the gap before them: 0.5 s for four, 1 s for two, 3 s for three, 2 s for one.
    shared_s = [*[0.125] * 4, *[0.5] * 2, *[1.0] * 3]
    for name, expected in {ALL: [*shared_s, 2.0], "1": shared_s, "2": [2.0]}.items():
        itl_s = latencies[name].itl_s
        assert itl_s is not None
        assert (itl_s.mean, itl_s.p95) == pytest.approx(
            (np.mean(expected), np.quantile(expected, 0.95))
        )
    before = latencies_by_class(
        scene, result([], [{**row, "arrived_s": 9.0} for row in rounds], [])
    )
    assert before[ALL].icl_s is None
    assert before[ALL].itl_s is None


@pytest.mark.parametrize("system", ["wisp", "adaspec", "centralized"])
def test_time_per_token_lies_within_the_gaps_between_arrivals(system: str) -> None:
    """The gaps of a response add up to the time from its first tokens to its last, whichever side drafts."""
    scene = scenario(system, 8, slo="1", duration_s=60.0, warmup_s=0.0)
    latencies = latencies_by_class(scene, simulate(scene, 1))[ALL]
    icl_s, tpot_s, ttft_s, response_s = (
        latencies.icl_s,
        latencies.tpot_s,
        latencies.ttft_s,
        latencies.response_s,
    )
    assert icl_s
    assert tpot_s
    assert ttft_s
    assert response_s
    assert 0 < tpot_s.mean <= icl_s.mean
    assert icl_s.p50 <= icl_s.p95 <= icl_s.p99
    assert ttft_s.mean + 39 * tpot_s.mean == pytest.approx(response_s.mean)
    if system == "centralized":  # one token a round: the mean over gaps is that over tokens
        assert icl_s.mean == pytest.approx(tpot_s.mean, rel=0.02)


def test_figures_of_a_run_hang_together() -> None:
    scene = scenario("wisp-cache", 30)
    run = simulate(scene, 2)
    figures = compute_metrics(scene, run)
    overall, classes = figures.overall, figures.classes
    assert set(classes) == {"1", "2", "3", "4"}
    assert sum(class_figures.throughput for class_figures in classes.values()) == pytest.approx(
        overall.throughput
    )
    assert sum(class_figures.responses for class_figures in classes.values()) == overall.responses
    assert overall.goodput <= overall.throughput
    assert 0 < figures.server.utilisation <= 1
    assert figures.server.estimate_over_true == pytest.approx(1)
    assert overall.interference.mean >= 1
    assert figures.steady.steady in (True, False)
    assert figures.cost.edge_busy_s > 0


def test_a_run_without_anything_to_judge_has_no_rates() -> None:
    scene = scenario(devices=1, slo="1", duration_s=6.0)
    overall = compute_metrics(scene, simulate(scene)).overall
    assert (overall.responses, overall.violation_rate) == (0, None)


TABLE_2 = {"1": (130, 50), "2": (66, 25), "3": (56, 20), "4": (40, 14)}
"""Per class, devices between the capacities of WISP and of centralized serving, and between that and SLED's."""


@pytest.mark.parametrize("slo", nightly_except(["4"], "1234"))
def test_wisp_serves_more_devices_than_centralized_serving_and_that_more_than_sled(
    slo: str,
) -> None:
    """The ordering of WISP's Table 2 with its Table 12: prompts of 500 and answers of 100 tokens, acceptance 0.8."""
    devices, fewer = TABLE_2[slo]
    assert broken("wisp", slo, devices) <= 0.05 < broken("centralized", slo, devices + devices // 8)
    assert broken("centralized", slo, fewer) <= 0.05 < broken("sled", slo, fewer)


def broken(system: str, slo: str, devices: int) -> float:
    source = iid(0.8, 8, StopRuleRates(0.8011, 0.575)) if system == "wisp" else iid(0.8, 4)
    scene = Scenario(
        find("wisp").build(), systems.get(system), source, devices, slo=parse_slo(slo),
        prompt_tokens=500, output_tokens=100, duration_s=170.0, warmup_s=20.0,
    )  # fmt: skip
    rate: float = compute_metrics(scene, simulate(scene)).overall.violation_rate
    return rate


def test_the_tail_of_equal_runs_differs_by_no_more_than_its_interval() -> None:
    runs = []
    for seed in range(30):
        scene = scenario(devices=10, slo=MIX, duration_s=25.0, warmup_s=5.0)
        done = simulate(scene, seed)
        tails = tail_of_gaps(scene, done)
        assert tails["all"].mean == pytest.approx(compute_metrics(scene, done).overall.itl_s.p99)
        runs.append(tails)
    assert set(runs[0]) == {"all", "1", "2", "3", "4"}
    tails = [tails["all"] for tails in runs]
    middle = np.mean([tail.mean for tail in tails])
    held = sum(tail.low <= middle <= tail.high for tail in tails)
    assert held >= 26
    assert not any(
        is_higher(one, other) or is_higher(other, one)
        for one, other in zip(tails[:15], tails[15:], strict=True)
    )


def test_a_longer_tail_is_shown() -> None:
    scenes = [scenario(devices=devices, duration_s=25.0, warmup_s=5.0) for devices in (2, 40)]
    few, many = (tail_of_gaps(scene, simulate(scene, 1))["all"] for scene in scenes)
    assert is_higher(many, few)


def test_a_run_without_gaps_has_no_tail() -> None:
    scene = scenario(duration_s=100.0, warmup_s=10.0)
    assert tail_of_gaps(scene, result([], [], [])) == {}
