"""A batch at the limits of its memory, its size and its deadlines."""

from math import exp, log
from random import Random

import pytest
from test_schedulers import PLAIN, clients, filled_queue, waiting

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.base import Profile
from specbench_kit.serving.schedulers.base import BatchBuilder, BatchLimits
from specbench_kit.serving.schedulers.estimator import (
    Estimator,
    EstimatorError,
    estimate_with_profile,
)
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.schedulers.wisp_promise import FeasibleQueue


def estimator_of(*requests: WaitingRound, error: EstimatorError | None = None) -> Estimator:
    estimator = Estimator(PLAIN, error or EstimatorError())
    estimator.estimate(*requests)
    return estimator


@pytest.mark.parametrize(("kv_tokens", "fits"), [(210, True), (209, False)])
def test_all_at_once_they_take_new_and_cached_tokens_of_the_memory(
    kv_tokens: float, fits: bool
) -> None:
    pair = [waiting(0, 9.0), waiting(1, 9.0)]
    batch = BatchBuilder(estimator_of(*pair), BatchLimits(8, kv_tokens))
    assert batch.take_all(pair, 0.5) is fits
    assert batch.requests == (pair if fits else [])
    assert batch.seconds == pytest.approx(0.2 if fits else 0.1)
    assert batch.fits(waiting(2, 9.0, new=1, cached=0)) is not fits


@pytest.mark.parametrize(("due_s", "fits"), [(0.71, True), (0.69, False)])
def test_all_at_once_they_have_to_be_in_time_together(due_s: float, fits: bool) -> None:
    """An empty batch takes 100 ms, each of the two requests 50 ms more."""
    pair = [waiting(0, 9.0), waiting(1, due_s)]
    assert BatchBuilder(estimator_of(*pair), BatchLimits(8)).take_all(pair, 0.5) is fits
    first, second = waiting(0, due_s), waiting(1, 9.0)
    batch = BatchBuilder(estimator_of(first, second), BatchLimits(8))
    assert batch.take_all([first], 0.5)
    assert batch.take_all([second], 0.5) is fits


def test_late_requests_do_not_keep_each_other_out() -> None:
    """Two requests are past their deadline; one joins the other, and a third that is in time binds both."""
    assert clients(filled_queue("knapsack", [waiting(0, 0.2), waiting(1, 0.3)])) == [0, 1]
    assert clients(
        filled_queue("knapsack", [waiting(0, 0.2), waiting(1, 0.3), waiting(2, 0.71)])
    ) == [2, 0]


def test_critical_requests_that_are_late_by_now_bind_nobody() -> None:
    """The first two of a queue sorted by deadline are late, and the third is due in 260 ms."""
    late, later, urgent = waiting(0, 0.50), waiting(1, 0.51), waiting(2, 0.76)
    requests = [late, later, urgent]
    feasible, batch = FeasibleQueue(0.1), BatchBuilder(estimator_of(*requests), BatchLimits(8))
    feasible.add(requests)
    assert feasible.add_urgent(batch, 0.5, 0.5)
    assert batch.requests == requests
    assert list(feasible) == []


def test_a_late_request_for_which_those_in_time_cannot_wait_ends_the_critical_ones() -> None:
    urgent, late = waiting(1, 0.66), waiting(0, 0.64)
    batch, feasible = BatchBuilder(estimator_of(urgent, late), BatchLimits(8)), FeasibleQueue(0.1)
    assert batch.take(urgent, 0.5)
    urgent.scheduled = True
    feasible.add([late])
    assert not feasible.add_urgent(batch, 0.5, 0.5)
    assert batch.requests == [urgent]
    assert list(feasible) == [late]


def test_those_that_are_not_critical_stay_in_order_over_several_looks() -> None:
    """Sixteen requests are tried together; the first is critical, and so is the 21st, which would make it late."""
    requests = [
        waiting(0, 0.69),
        *(waiting(n, 3.0 + n / 100, new=255 if n == 20 else 5) for n in range(1, 40)),
    ]
    batch, feasible = BatchBuilder(estimator_of(*requests), BatchLimits(8)), FeasibleQueue(0.1)
    feasible.add(requests)
    assert not feasible.add_urgent(batch, 0.5, 0.1)
    assert batch.requests == requests[:1]
    assert list(feasible) == requests[1:]
    feasible.compact(0)
    assert list(feasible) == requests[1:]


def test_tidied_orders_hold_those_that_wait_and_no_others() -> None:
    requests = [waiting(n, 9.0 + n) for n in range(100)]
    estimator_of(*requests)
    feasible = FeasibleQueue(0.1)
    feasible.add(requests)
    feasible.remove_late(0.5)
    for request in requests[:90]:
        request.scheduled = True
    feasible.compact(10)
    assert list(feasible) == requests[90:]
    batch = BatchBuilder(estimator_of(*requests), BatchLimits(64))
    feasible.add_by_utility(batch, 0.5)
    assert batch.requests == requests[90:]


@pytest.mark.parametrize(
    "spec", ["wisp-promise", "wisp-paper:late_lane=true", "knapsack", "edf", "fcfs"]
)
def test_a_queue_is_as_long_as_what_it_has_not_handed_out(spec: str) -> None:
    queue = filled_queue(spec, [waiting(n, 9.0 + n) for n in range(7)], limits=BatchLimits(3))
    lengths = [len(queue)]
    while queue:
        queue.next_batch(0.5)
        lengths.append(len(queue))
    assert lengths == [7, 4, 1, 0]


def test_a_request_is_misjudged_by_a_factor_on_its_own_part() -> None:
    """The factor is log-normal from the seed's stream; the 100 ms of an empty batch are exact."""
    request = waiting(0, 9.0)
    estimator_of(request, error=EstimatorError(noise=0.5))
    noise = exp(0.5 * Random("0/estimator").gauss(0, 1))
    assert request.isolated_s == pytest.approx(0.1 + 0.05 * noise)
    assert request.error_s == pytest.approx(0.05 * noise - 0.05)
    assert abs(log(noise)) > 0.05


def test_an_estimator_of_another_model_is_refused_with_both_names() -> None:
    first_profile, second_profile = (
        Profile(name, "verifier", "here", model, "float32", "measured", "interactions", {})
        for name, model in (("a", "m-8b"), ("b", ""))
    )
    with pytest.raises(SkitError, match="'a' is of m-8b, but the server runs no known model"):
        estimate_with_profile(first_profile, second_profile)
    with pytest.raises(SkitError, match="'b' is of no known model, but the server runs m-8b"):
        estimate_with_profile(second_profile, first_profile)
