"""The search for capacity and its sequential test."""

from dataclasses import replace

import numpy as np
import pytest

from specbench_kit.deployments.loading import find
from specbench_kit.errors import SkitError
from specbench_kit.serving.acceptance import iid
from specbench_kit.serving.capacity import LOOKS, Found, Rule, attempt, interval, search
from specbench_kit.serving.metrics import violations
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems

RULE = Rule(epsilon=0.05, most=64)


def scenario(devices: int = 1, **changes: object) -> Scenario:
    deployment = find("wisp").build()
    base = Scenario(deployment, systems.get("sled"), iid(0.8, 4), devices, slo=parse_slo("4"))
    lengths = {"prompt_tokens": 300, "output_tokens": 40, "duration_s": 120.0, "warmup_s": 10.0}
    return replace(base, **(lengths | changes))


def test_interval_holds_at_every_look_together() -> None:
    """Independent responses with a rate just above epsilon are seldom taken to be below it, however often one looks."""
    random = np.random.default_rng(0)
    runs, epsilon, rate, wrong = 400, 0.05, 0.055, 0
    for _ in range(runs):
        violated = random.random(2000) < rate
        looks = [violated[: int(share * len(violated))] for share in LOOKS]
        wrong += any(interval(seen, turns=20)[2] <= epsilon for seen in looks)
    assert wrong / runs <= 0.05


def test_interval_is_wider_where_responses_share_their_fate() -> None:
    random = np.random.default_rng(1)
    turns = random.random(20) < 0.3
    together = np.repeat(turns, 50)
    apart = random.permutation(together)
    rate, low, high = interval(together, turns=20)
    assert rate == apart.mean()
    assert high - low > 2 * (interval(apart, turns=20)[2] - interval(apart, turns=20)[1])


def test_clumped_responses_are_seldom_settled_wrongly() -> None:
    random = np.random.default_rng(2)
    runs, wrong = 300, 0
    for _ in range(runs):
        rates = random.beta(0.5, 5, 24)
        violated = (random.random((24, 40)) < rates[:, None]).ravel()
        _, low, high = interval(violated, turns=24)
        wrong += not low <= 0.5 / 5.5 <= high
    assert wrong / runs <= 0.1


def test_nothing_violated_and_everything_violated_have_an_interval() -> None:
    clean = interval(np.zeros(200, dtype=bool), turns=10)
    broken = interval(np.ones(200, dtype=bool), turns=10)
    assert clean[:2] == (0.0, 0.0)
    assert 0 < clean[2] < 0.05
    assert broken[0] == broken[2] == 1.0
    assert 0.95 < broken[1] < 1


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    """What makes several looks at one run out of runs of several lengths."""
    short, long = (simulate(scenario(8, duration_s=seconds), 3) for seconds in (40.0, 80.0))
    ended = np.isfinite(short.responses["end_s"])
    count = int(ended.sum())
    assert count > 10
    for name, column in short.responses.items():
        assert np.array_equal(column[ended], long.responses[name][:count])


def test_the_capacity_is_the_last_number_that_holds() -> None:
    found = search(scenario(), 0, RULE)
    tried = {trial.devices: trial for trial in found.trials}
    assert tried[found.devices].holds
    assert not tried[found.devices + 1].holds
    for devices in (found.devices, found.devices + 1):
        violated, _ = violations(scenario(devices), simulate(scenario(devices), 0))
        trial = tried[devices]
        if trial.simulated_s == scenario().duration_s:
            assert trial.rate == violated.mean()
        if trial.settled:
            assert trial.holds == (violated.mean() <= RULE.epsilon)


def test_runs_far_from_the_edge_are_stopped_early() -> None:
    light, heavy = (attempt(scenario(devices, duration_s=400.0), 0, RULE) for devices in (2, 60))
    assert light.settled
    assert light.holds
    assert light.simulated_s < 400
    assert not heavy.holds


def test_the_search_ends_at_the_most_devices() -> None:
    found = search(scenario(slo=parse_slo("1/s")), 0, Rule(most=3))
    assert found == Found(3, found.trials, bounded=True)


def test_no_devices_where_even_one_breaks_its_slo() -> None:
    """Its batch is never full, so that it waits for the time-out in every round."""
    slow = scenario(slo=parse_slo("12/s"), prompt_tokens=1500, duration_s=200.0)
    assert search(slow, 0, RULE).devices == 0


def test_a_run_in_which_no_response_is_due_is_refused() -> None:
    with pytest.raises(SkitError, match="simulate for longer"):
        attempt(scenario(output_tokens=4000), 0, RULE)


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
        Rule(**changes)
