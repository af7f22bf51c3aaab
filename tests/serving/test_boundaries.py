"""Options, batches, deadlines and halves exactly at their bounds."""

import numpy as np
import pytest
from scenes import scenario
from test_metrics import response, result
from test_order_and_capacity import clients, filled_queue, waiting

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.devices import Devices
from specbench_kit.serving.events import parse_window
from specbench_kit.serving.metrics import compute_metrics, slo_violations
from specbench_kit.serving.schedulers.base import BatchLimits, parse_scheduler
from specbench_kit.serving.schedulers.waiting import WaitingRound


def test_a_round_that_arrives_at_a_moment_has_not_arrived_before_it() -> None:
    devices = Devices(scenario(devices=4), seed=0)
    devices.arrives_s[:] = [2.0, 1.0, 3.0, 1.0]
    assert devices.arrived(2.0).tolist() == [1, 3, 0]
    assert devices.arrived(2.0, before=True).tolist() == [1, 3]


def test_a_window_of_events_may_begin_with_the_simulation() -> None:
    assert parse_window("0:60") == (0, 60)


@pytest.mark.parametrize("text", ["-1:60", "60:60", "70:60", "0:inf", "nan:60", "60"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SkitError, match="--timeline takes FROM:TO"):
        parse_window(text)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("knapsack:window=17", "knapsack: window must lie in 1..16, not 17"),
        ("knapsack:window=0", "knapsack: window must lie in 1..16, not 0"),
        ("knapsack:guard_s=-0.5", "knapsack: guard_s must not be negative, but is -0.5"),
        ("prefill-first:prompt_tokens=0", "prefill-first: prompt_tokens must be at least 1, not 0"),
        ("static:size=0", "static: size must be at least 1, not 0"),
        ("static:timeout_s=-1", "static: timeout_s must not be negative, but is -1.0"),
        ("static:groups=0", "static: groups must be at least 1, not 0"),
        ("wisp-promise:guard_s=-1", "wisp-promise: guard_s must not be negative, but is -1.0"),
        ("wisp-promise:amortise=-1", "wisp-promise: amortise must not be negative, but is -1.0"),
    ],
)
def test_options_beyond_their_bounds_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SkitError) as refused:
        parse_scheduler(spec)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "spec",
    [
        "knapsack:window=16,guard_s=0",
        "knapsack:window=1",
        "prefill-first:prompt_tokens=1",
        "static:size=1,timeout_s=0,groups=1",
        "wisp-promise:guard_s=0,amortise=0",
    ],
)
def test_options_at_their_bounds_are_taken(spec: str) -> None:
    assert parse_scheduler(spec)


def test_prompts_fill_a_batch_and_memory_to_the_last_token() -> None:
    prompts = [waiting(n, 5, 0) for n in range(3)]
    assert clients(filled_queue("prefill-first:prompt_tokens=10", prompts, BatchLimits(9))) == [
        0,
        1,
    ]
    assert clients(filled_queue("prefill-first:prompt_tokens=9", prompts, BatchLimits(9))) == [0]
    assert clients(filled_queue("prefill-first:prompt_tokens=4", prompts, BatchLimits(9))) == [0]
    assert clients(filled_queue("prefill-first", prompts, BatchLimits(9, 10))) == [0, 1]


def test_the_best_batch_takes_late_requests_into_its_room() -> None:
    """A request that takes 110 ms and is due at 0.6 s is late at 0.5 s: it joins behind the one in time."""
    late = WaitingRound(0, 1, 0, 0.0, 0.6, 1.0, 0.6)
    assert clients(filled_queue("knapsack", [late, waiting(1, 1, 0)], BatchLimits(9))) == [1, 0]
    assert clients(filled_queue("knapsack", [late, waiting(1, 1, 0)], BatchLimits(1))) == [1]


def test_an_answer_at_its_deadline_is_in_time() -> None:
    round_ = {"sent_s": 19.9, "arrived_s": 20.0, "started_s": 20.0, "answered_s": 21.0, "new": 1}
    rounds = [{**round_, "ended_s": ended_s, "deadline_s": 20.5} for ended_s in (20.5, 20.6)]
    batch = {"started_s": 20.0, "ended_s": 20.6, "expected_s": 20.6, "size": 2}
    scene = scenario(slo="2", duration_s=100.0, warmup_s=10.0)
    assert compute_metrics(scene, result([], rounds, [batch])).overall.deadline_miss_rate == 1 / 2


def test_time_per_token_counts_the_gaps() -> None:
    """21 tokens have 20 gaps: at 2 a second the last one is due 10 s after the first."""
    scene = scenario(slo="1", duration_s=100.0, warmup_s=10.0)
    for end_s, broken in ((38.8, False), (39.2, True)):
        violated, classes = slo_violations(
            scene, result([response(20, end_s, 21, first_s=29)], [], []), "tpot"
        )
        assert violated.tolist() == [broken]
        assert classes.dtype == np.int64


def test_the_middle_belongs_to_the_second_half() -> None:
    """From 10 to 100 s the middle is at 55 s."""
    scene = scenario(slo="2", duration_s=100.0, warmup_s=10.0)
    rounds = [
        {"answered_s": at_s, "arrived_s": at_s, "committed": 3.0, "ended_s": np.inf}
        for at_s in (10.0, 55.0)
    ]
    state = compute_metrics(scene, result([], rounds, [])).steady
    assert (state.drift, state.steady) == (0.0, True)
