"""The search for capacity and its sequential test."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from report_builders import make_record, make_round

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find
from specbench_kit.serving.arrivals import Poisson, ReplayedArrivals, RequestArrival
from specbench_kit.serving.lengths import LogNormalLengths
from specbench_kit.serving.metrics import slo_violations
from specbench_kit.serving.options import Objective
from specbench_kit.serving.result import (
    BATCH_COLUMNS,
    RESPONSE_COLUMNS,
    ROUND_COLUMNS,
    SimulationResult,
)
from specbench_kit.serving.round_sources import RecordedRounds, iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.server_metrics import is_drifting, warm_up_end_s
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.serving import capacity
from specbench_kit.studies.serving.capacity import (
    LOOKS,
    RATE_STEP,
    CapacityRule,
    SeedSearch,
    TriedLoad,
    at_load,
    find_capacity,
    load_unit,
    steps_tried,
    try_load,
    violation_interval,
)

RULE = CapacityRule(epsilon=0.05, most=64)


def scenario(devices: int = 1, **changes: object) -> Scenario:
    deployment = find("wisp").build()
    base = Scenario(deployment, systems.get("sled"), iid(0.8, 4), devices, slo=parse_slo("4"))
    lengths = {"prompt_tokens": 300, "output_tokens": 40, "duration_s": 120.0, "warmup_s": 10.0}
    return replace(base, **(lengths | changes))


def late(violated: Sequence[bool] | np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Return the lateness of responses that are in time by half, or late by as much."""
    return np.where(violated, 1.5, 0.5)


def alphas() -> list[float]:
    """Return what each look may err, as a run spends it."""
    return [
        0.05 * (share - before) / LOOKS[-1]
        for before, share in zip((0.0, *LOOKS), LOOKS, strict=False)
    ]


def test_looks_share_what_a_run_may_err() -> None:
    assert sum(alphas()) == pytest.approx(0.05)


def test_interval_holds_at_every_look_together() -> None:
    """Independent responses with a rate just above epsilon are seldom taken to be below it, however often one looks."""
    random = np.random.default_rng(0)
    runs, epsilon, rate, wrong = 400, 0.05, 0.055, 0
    for _ in range(runs):
        responses = late(random.random(4000) < rate)
        wrong += any(
            violation_interval(responses[: int(share * 2000)], 40 * share, alpha)[2] <= epsilon
            for share, alpha in zip(LOOKS, alphas(), strict=True)
        )
    assert wrong / runs <= 0.05


@pytest.mark.parametrize(("load", "most"), [(0.6, 0.05), (0.8, 0.07)])
def test_the_interval_of_a_queue_holds_as_often_as_it_says(load: float, most: float) -> None:
    """Customers of a queue wait together, which intervals of independent responses miss in 40% of runs and more."""
    random = np.random.default_rng(3)
    customers = 4000
    limit_s = np.quantile(_waits(random, load, 400_000), 0.94)
    runs, missed = 200, 0
    for _ in range(runs):
        waits_s = _waits(random, load, customers)
        _, low, high = violation_interval(waits_s / limit_s, turns=customers / 3)
        missed += not low <= 0.06 <= high
    assert missed / runs <= most


def _waits(random: np.random.Generator, load: float, customers: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return the seconds of customers of a queue with one server, a second for each, in their order (Lindley)."""
    warm_up = 1000
    arrivals_s = np.cumsum(random.exponential(1 / load, customers + warm_up))
    before_s = np.arange(customers + warm_up)
    ends_s = np.maximum.accumulate(arrivals_s - before_s) + before_s + 1
    waits_s: np.ndarray = (ends_s - arrivals_s)[warm_up:]  # type: ignore[type-arg]
    return waits_s


def test_interval_is_wider_where_responses_share_their_fate() -> None:
    random = np.random.default_rng(1)
    together = np.repeat(random.random(20) < 0.3, 50)
    apart = random.permutation(together)
    rate, low, high = violation_interval(late(together), turns=20)
    assert rate == apart.mean()
    _, low_apart, high_apart = violation_interval(late(apart), turns=20)
    assert high - low > 2 * (high_apart - low_apart)


def test_clumped_responses_are_seldom_settled_wrongly() -> None:
    random = np.random.default_rng(2)
    runs, wrong = 300, 0
    for _ in range(runs):
        rates = random.beta(0.5, 5, 24)
        violated = (random.random((24, 40)) < rates[:, None]).ravel()
        _, low, high = violation_interval(late(violated), turns=24)
        wrong += not low <= 0.5 / 5.5 <= high
    assert wrong / runs <= 0.06


def test_nothing_violated_and_everything_violated_have_an_interval() -> None:
    clean = violation_interval(late([False] * 200), turns=10)
    broken = violation_interval(late([True] * 200), turns=10)
    assert clean[:2] == (0.0, 0.0)
    assert 0 < clean[2] < 0.05
    assert broken[0] == broken[2] == 1.0
    assert 0.95 < broken[1] < 1
    assert violation_interval(late([]), turns=0) == (0.0, 0.0, 1.0)


def test_responses_that_are_in_time_together_count_for_fewer() -> None:
    """None of them is late; lateness that drifts slowly says that not all of them are new evidence."""
    random = np.random.default_rng(4)
    slow = 0.5 + 0.3 * np.sin(np.linspace(0, 9, 800))
    assert (
        violation_interval(slow, turns=20)[2]
        > 3 * violation_interval(random.permutation(slow), turns=20)[2]
    )


def test_two_batches_say_hardly_anything() -> None:
    """A run of two turns knows the variance from two numbers, however many responses it has."""
    random = np.random.default_rng(5)
    responses = late(random.random(2000) < 0.2)
    widths = [
        high - low for _, low, high in (violation_interval(responses, turns) for turns in (2, 8))
    ]
    assert widths[0] > 4 * widths[1]


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    """One run can therefore be examined several times instead of running several lengths."""
    short, long = (simulate(scenario(8, duration_s=seconds), 3) for seconds in (40.0, 80.0))
    ended = np.isfinite(short.responses["end_s"])
    count = int(ended.sum())
    assert count > 10
    for name, column in short.responses.items():
        assert np.array_equal(column[ended], long.responses[name][:count])


def test_the_capacity_is_the_last_number_that_holds() -> None:
    search = find_capacity(scenario(), 0, RULE)
    tried = {trial.load: trial for trial in search.trials}
    assert tried[search.load].holds
    assert not tried[search.load + 1].holds
    for devices in (search.load, search.load + 1):
        violated, _ = slo_violations(scenario(devices), simulate(scenario(devices), 0))
        trial = tried[devices]
        if trial.simulated_s == scenario().duration_s:
            assert trial.rate == violated.mean()
        if trial.settled:
            assert trial.holds == (violated.mean() <= RULE.epsilon)


def test_runs_far_from_the_edge_are_stopped_early() -> None:
    light, heavy = (try_load(scenario(devices, duration_s=1000.0), 0, RULE) for devices in (2, 60))
    assert light.settled
    assert light.holds
    assert light.simulated_s < 1000
    assert not heavy.holds


def test_the_search_ends_at_the_most_devices() -> None:
    search = find_capacity(scenario(slo=parse_slo("1/s")), 0, CapacityRule(most=3))
    assert search == SeedSearch(3, search.trials, bounded=True)


def test_with_arrivals_of_their_own_the_search_is_over_their_rate() -> None:
    """A response takes 4 s on its own whatever the number of devices, so the capacity is a rate of arrivals."""
    search = find_capacity(
        scenario(arrivals=Poisson(99.0), output_tokens=10, duration_s=60.0),
        0,
        CapacityRule(epsilon=0.2, most=32),
    )
    assert load_unit(scenario(arrivals=Poisson(1.0))) == "requests/s"
    assert {trial.load for trial in search.trials} <= {step * RATE_STEP for step in range(1, 33)}
    at = at_load(scenario(arrivals=Poisson(99.0)), 250)
    assert at.arrivals == Poisson(2.5)
    trace = ReplayedArrivals(tuple(RequestArrival(float(at_s)) for at_s in range(5)))
    assert [request.at_s for request in trace.at_rate(2.5).requests] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_rate_that_falls_again_with_the_load_is_followed_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loads up to 18 and from 44 to 60 are served, as if batches filled only then; 1.5 times 32 is tried too."""
    served = {*range(1, 19), *range(44, 61)}

    def tried(_scenario: Scenario, _seed: int, _rule: CapacityRule, load: float) -> TriedLoad:
        return TriedLoad(load, 0.0, 0.0, 0.0, 100, 1.0, True, load in served)

    monkeypatch.setattr(capacity, "try_load", tried)
    bent = find_capacity(scenario(), 0, RULE)
    assert (bent.load, bent.monotone) == (60, False)
    served -= set(range(44, 61))
    straight = find_capacity(scenario(), 0, RULE)
    assert (straight.load, straight.monotone) == (18, True)


def test_a_run_that_drifts_cannot_say_that_a_load_is_served() -> None:
    """Every second brings the same tokens, later half as many; all responses are in time so far."""
    scene = scenario(duration_s=100.0, warmup_s=20.0)
    for later, drifting in ((10.0, False), (5.0, True)):
        answered_s = np.arange(0.5, 100.0)
        rounds = dict.fromkeys(ROUND_COLUMNS, np.zeros(100))
        rounds |= {"answered_s": answered_s, "committed": np.where(answered_s < 60, 10.0, later)}
        other_tables = (
            dict.fromkeys(RESPONSE_COLUMNS, np.zeros(0)),
            dict.fromkeys(BATCH_COLUMNS, np.zeros(0)),
        )
        assert (
            is_drifting(scene, SimulationResult(rounds, *other_tables, 100.0, 0, 0.0, 0, 0, 0))
            == drifting
        )


def test_the_warm_up_ends_where_the_rest_is_steady() -> None:
    answered_s = np.arange(0.5, 120.0)
    rounds = dict.fromkeys(ROUND_COLUMNS, np.zeros(120))
    rounds |= {
        "answered_s": answered_s,
        "committed": np.where(answered_s < 20, answered_s, 20 + answered_s % 2),
    }
    other_tables = (
        dict.fromkeys(RESPONSE_COLUMNS, np.zeros(0)),
        dict.fromkeys(BATCH_COLUMNS, np.zeros(0)),
    )
    assert warm_up_end_s(SimulationResult(rounds, *other_tables, 120.0, 0, 0.0, 0, 0, 0)) == 20.0


def test_no_devices_where_even_one_breaks_its_slo() -> None:
    """The batch of one device is never full, so that every round waits for the time-out."""
    slow = scenario(slo=parse_slo("12/s"), prompt_tokens=1500, duration_s=200.0)
    assert find_capacity(slow, 0, RULE).load == 0


def test_a_run_in_which_no_response_is_due_is_refused() -> None:
    with pytest.raises(SkitError, match="simulate for longer"):
        try_load(scenario(output_tokens=4000), 0, RULE)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"epsilon": 1.0}, "--epsilon is a share of responses from 0 to below 1, not 1"),
        ({"most": 0}, "--most must be at least 1 device, not 0"),
        ({"resolution": -0.1}, "--resolution is a share from 0 to below 1, not -0.1"),
    ],
)
def test_rules_are_checked(changes: dict[str, float], line: str) -> None:
    with pytest.raises(SkitError, match=line):
        CapacityRule(**changes)


@pytest.mark.parametrize(("objective", "tokens"), [("speed", 41), ("tpot", 42)])
def test_a_promise_beyond_the_end_of_the_run_is_refused_before_it(
    objective: Objective, tokens: int
) -> None:
    """40 tokens at 8 tokens/s have the five seconds that the warm-up leaves."""
    at_most = scenario(output_tokens=tokens - 1, duration_s=15.0)
    at_most.check_due(objective)
    too_long = replace(at_most, output_tokens=tokens)
    with pytest.raises(
        SkitError,
        match=rf"no response of {tokens} tokens is due within 15 s: .* give --duration 2\d or more",
    ):
        too_long.check_due(objective)
    recorded = replace(
        too_long,
        output_tokens=None,
        source=RecordedRounds([make_record("long", *[make_round()] * tokens)]),
    )
    with pytest.raises(SkitError, match=f"no response of {tokens} tokens is due"):
        recorded.check_due(objective)
    arrivals = ReplayedArrivals((RequestArrival(0.0, 10, 5),))
    replace(too_long, arrivals=arrivals).check_due(objective)
    replace(too_long, output_tokens=LogNormalLengths(500, 0.5)).check_due(objective)


def test_the_loads_that_a_search_will_try_are_known_from_its_capacity() -> None:
    for most in (8, 64, 4096):
        found = find_capacity(scenario(), 0, replace(RULE, most=most))
        assert steps_tried(int(found.load), replace(RULE, most=most)) == [
            trial.load for trial in found.trials
        ]
