"""One scene of the simulator in which every figure is worked out by hand."""

from typing import Any

import pytest
from msgspec import structs

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.arrivals import ReplayedArrivals, RequestArrival
from specbench_kit.serving.figures import Figures, MissCauses, Real, SteadyState
from specbench_kit.serving.metrics import compute_metrics, slo_violations
from specbench_kit.serving.round_sources import PositionRates
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems


def always(seconds: float) -> InteractionModel:
    return InteractionModel(0, 0, 0, seconds)


# A draft step takes 0.1 s, so does reading a prompt on the device and crossing the link; a verification takes 0.35 s.
# Two tokens are drafted, both are accepted: a response of 6 tokens is two rounds of 3. From its start at t, alone:
# sent t + 0.3, at the server t + 0.4 .. t + 0.75, answered t + 0.85, sent t + 1.05, at the server t + 1.15 .. t + 1.5,
# answered t + 1.6.
DEPLOYMENT = Deployment(
    "scene",
    Endpoint("edge", always(0.1), price_per_hour=3600.0),
    Endpoint("server", always(0.35), price_per_hour=7200.0),
    Link(rtt_s=0.2),
)
SLO = "3.4/s"  # 6 tokens are due after 1.765 s
STARTS_S = (0.0, 1.0, 3.95, 3.0, 3.9, 90.0, 9.45)
"""Dealt to three devices in turn: device 0 asks at 0, 3 and 9.45 s, 1 at 1 and 3.9 s, 2 at 3.95 s and after the end."""


def scene(**changes: Any) -> Scenario:
    options: dict[str, Any] = {
        "devices": 3,
        "slo": parse_slo(SLO),
        "arrivals": ReplayedArrivals(tuple(RequestArrival(at_s, 5, 6) for at_s in STARTS_S)),
        "duration_s": 10.0,
        "warmup_s": 2.0,
    }
    return Scenario(
        DEPLOYMENT, systems.get("wisp-cache"), PositionRates((1.0, 1.0)), **(options | changes)
    )


@pytest.fixture
def found() -> Figures:
    """After the warm-up at 2 s the server verifies, each for 0.35 s (arrivals and waits behind):

    2.25 device 1; 3.4 and 4.15 device 0; 4.5 devices 1 and 2 (4.3 and 4.35: 0.2 and 0.15); 5.25 both again;
    9.85 device 0, which the end at 10 s cuts short.
    Answered: 2.7; 3.85 and 4.6; 4.95 and 5.7 for both.
    """
    return compute_metrics(scene(), simulate(scene()))


def mean(percentiles: Percentiles[Real] | None) -> float:
    assert percentiles is not None
    return percentiles.mean


def test_responses_and_their_promises(found: Figures) -> None:
    # Owed: 3.0 (1.6 s), 3.9 (1.8 s, broken) and 3.95 (1.75 s). Those of 0 and 1 s began in the warm-up; that of
    # 9.45 s is due after the end.
    overall = found.overall
    assert (overall.responses, overall.violation_rate) == (3, pytest.approx(1 / 3))
    assert mean(overall.speed) == pytest.approx((6 / 1.6 + 6 / 1.8 + 6 / 1.75) / 3)
    assert mean(overall.ttft_s) == pytest.approx((0.85 + 1.05 + 1.0) / 3)
    assert mean(overall.tpot_s) == pytest.approx(0.75 / 5)
    # Every response comes in two bursts of three tokens, 0.75 s apart, whatever waited before the first one.
    assert overall.icl_s is not None
    assert structs.astuple(overall.icl_s) == pytest.approx([0.75] * 4)
    assert overall.itl_s is not None
    assert structs.astuple(overall.itl_s) == pytest.approx([0.25] * 4)


def test_throughput_counts_all_tokens_and_goodput_those_of_kept_promises(found: Figures) -> None:
    # 3 tokens of the response that began at 1 s, and three whole responses, in 8 s; one of these three came too late,
    # and of the one before nobody asks, since it began in the warm-up.
    assert found.overall.throughput == pytest.approx((3 + 3 * 6) / 8)
    assert found.overall.goodput == pytest.approx((3 + 3 * 6) / 8 * 2 / 3)


def test_rounds_and_their_deadlines(found: Figures) -> None:
    # 3 tokens expected are 0.882 s; less 0.3 or 0.2 s of drafting and 0.2 s of the link, 0.382 or 0.482 s are left at
    # the server: the two that waited for 0.2 and 0.15 s before their 0.35 s are late. The last one's comes at 10.2 s.
    overall = found.overall
    assert (overall.rounds, overall.deadline_miss_rate) == (7, pytest.approx(2 / 7))
    assert overall.slow_round_rate == pytest.approx(
        2 / 7
    )  # 1.05 and 1.0 s for 3 tokens, all others 0.85 or 0.75 s
    assert (overall.acceptance_length, overall.submitted_per_verify) == (3, 2)
    # Of five times nothing, 0.15 and 0.2 s, in order: ranks 3, 5.7 and 5.94 of 0 to 6.
    assert overall.queue_s is not None
    ranks = (0.35 / 7, 0.0, 0.15 + 0.7 * 0.05, 0.15 + 0.94 * 0.05)
    assert structs.astuple(overall.queue_s) == pytest.approx(ranks, abs=1e-9)
    assert mean(overall.verify_s) == pytest.approx(0.35)
    assert mean(overall.interference) == pytest.approx(1)
    assert found.violations == MissCauses(window=50, compute_dominant=0, queue_dominant=2)


def test_the_server_is_busy_until_the_end_and_not_beyond(found: Figures) -> None:
    server = found.server
    assert server.utilisation == pytest.approx((5 * 0.35 + 0.15) / 8)
    assert (server.batches, mean(server.batch_size)) == (
        6,
        pytest.approx((1 + 1 + 1 + 2 + 2 + 1) / 6),
    )
    assert server.estimate_over_true == pytest.approx(1)
    assert (server.refusals, server.idle_while_waiting_s, server.evictions) == (0, 0.0, 0)
    assert server.peak_kv_tokens == 2 * (5 + 3 + 2)  # devices 1 and 2 in their second rounds
    assert found.steady == SteadyState(
        drift=-1.0, steady=False, warm_up_left_s=0.0
    )  # all was answered before 6 s


def test_how_it_goes_over_time(found: Figures) -> None:
    """There are sixty spans of a sixth of a second; a batch of two keeps the server busy from 4.5 to 4.85 s."""
    over_time = found.over_time
    assert sum(over_time.load) * 10 / 60 == pytest.approx(
        8 * 0.35 + 0.15
    )  # three of them in the warm-up
    assert over_time.load[27:29] == pytest.approx([1.0, 1.0])
    assert {over_time.batch_size[second] for second in (26, 27)} == {2, None}
    assert sum(over_time.tokens_per_s) * 10 / 60 == pytest.approx(5 * 6)


def test_devices_are_paid_while_they_draft(found: Figures) -> None:
    # Sent after the warm-up: at 2.15 s (0.2 s), three whole responses (0.5 s each), at 9.75 s (0.3 s).
    cost = found.cost
    assert cost.edge_busy_s == pytest.approx(0.2 + 3 * 0.5 + 0.3)
    assert cost.price == pytest.approx(2 * 8 + 2.0)  # 2 a second for the server, 1 for a device
    assert cost.tokens_per_price == pytest.approx(21 / 18)
    assert (cost.rented_price, cost.tokens_per_rented_price) == (
        8 * (2 + 3),
        pytest.approx(21 / 40),
    )


@pytest.mark.parametrize(
    ("warmup_s", "owed"),
    [
        (0.0, [3.0, 3.9, 3.95, 0.0, 1.0]),
        (0.5, [3.0, 3.9, 3.95, 1.0]),  # that of 0 s falls due at 1.765 s, and began in the warm-up
        (1.0, [3.0, 3.9, 3.95, 1.0]),
        (1.1, [3.0, 3.9, 3.95]),
        (3.0, [3.0, 3.9, 3.95]),
        (3.92, [3.95]),
    ],
)
def test_a_response_that_began_in_the_warm_up_is_not_owed(
    warmup_s: float, owed: list[float]
) -> None:
    scenario = scene(warmup_s=warmup_s)
    violated, _ = slo_violations(scenario, simulate(scenario))
    assert len(violated) == len(owed)
    assert violated.sum() == sum(at_s == 3.9 for at_s in owed)


def test_idle_spells_add_up() -> None:
    """A batch of two never fills with one device: both of its rounds wait for the time-out."""
    alone = scene(
        devices=1,
        arrivals=ReplayedArrivals((RequestArrival(3.0, 5, 6),)),
        scheduler="static:size=2,timeout_s=0.5",
        warmup_s=0.0,
    )
    server = compute_metrics(alone, simulate(alone)).server
    assert (server.refusals, server.idle_while_waiting_s) == (2, pytest.approx(2 * 0.5))
    assert server.utilisation == pytest.approx(2 * 0.35 / 10)
