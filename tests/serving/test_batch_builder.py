"""What goes into a batch at the edges of its memory, its places and its deadlines."""

from math import exp, log
from random import Random

import pytest
from test_schedulers import PLAIN, clients, filled_queue, waiting

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.base import Profile
from specbench_kit.serving.schedulers.base import BatchBuilder, BatchLimits
from specbench_kit.serving.schedulers.estimator import Estimator, EstimatorError, estimate_with_profile
from specbench_kit.serving.schedulers.feasible_queue import FeasibleQueue
from specbench_kit.serving.schedulers.waiting import WaitingRound


def judged(*requests: WaitingRound, error: EstimatorError | None = None) -> Estimator:
    estimator = Estimator(PLAIN, error or EstimatorError())
    estimator.estimate(*requests)
    return estimator


@pytest.mark.parametrize(("kv_tokens", "fits"), [(210, True), (209, False)])
def test_all_at_once_they_take_new_and_cached_tokens_of_the_memory(kv_tokens: float, fits: bool) -> None:
    pair = [waiting(0, 9.0), waiting(1, 9.0)]
    growing = BatchBuilder(judged(*pair), BatchLimits(8, kv_tokens))
    assert growing.take_all(pair, 0.5) is fits
    assert growing.requests == (pair if fits else [])
    assert growing.seconds == pytest.approx(0.2 if fits else 0.1)
    assert growing.fits(waiting(2, 9.0, new=1, cached=0)) is not fits


@pytest.mark.parametrize(("due_s", "fits"), [(0.71, True), (0.69, False)])
def test_all_at_once_they_have_to_be_in_time_together(due_s: float, fits: bool) -> None:
    """100 ms, and 50 ms for each of two."""
    pair = [waiting(0, 9.0), waiting(1, due_s)]
    assert BatchBuilder(judged(*pair), BatchLimits(8)).take_all(pair, 0.5) is fits
    first, second = waiting(0, due_s), waiting(1, 9.0)
    growing = BatchBuilder(judged(first, second), BatchLimits(8))
    assert growing.take_all([first], 0.5)
    assert growing.take_all([second], 0.5) is fits


def test_late_requests_do_not_keep_each_other_out() -> None:
    """Both were due before now; one is verified beside the other, and a third in time bounds both."""
    assert clients(filled_queue("knapsack", [waiting(0, 0.2), waiting(1, 0.3)])) == [0, 1]
    assert clients(filled_queue("knapsack", [waiting(0, 0.2), waiting(1, 0.3), waiting(2, 0.71)])) == [2, 0]


def test_critical_requests_that_are_late_by_now_bind_nobody() -> None:
    """A queue sorted by promise: the first two are late, the third due in 260 ms."""
    late, later, urgent = waiting(0, 0.50), waiting(1, 0.51), waiting(2, 0.76)
    requests = [late, later, urgent]
    timely, growing = FeasibleQueue(0.1), BatchBuilder(judged(*requests), BatchLimits(8))
    timely.add(requests)
    assert timely.add_urgent(growing, 0.5, 0.5)
    assert growing.requests == requests
    assert list(timely) == []


def test_a_late_request_for_which_those_in_time_cannot_wait_ends_the_critical_ones() -> None:
    urgent, late = waiting(1, 0.66), waiting(0, 0.64)
    growing, timely = BatchBuilder(judged(urgent, late), BatchLimits(8)), FeasibleQueue(0.1)
    assert growing.take(urgent, 0.5)
    urgent.scheduled = True
    timely.add([late])
    assert not timely.add_urgent(growing, 0.5, 0.5)
    assert growing.requests == [urgent]
    assert list(timely) == [late]


def test_those_that_are_not_critical_stay_in_order_over_several_looks() -> None:
    """Sixteen are looked at in one go; the first is critical, and the 21st, for which the first has no time."""
    requests = [waiting(0, 0.69), *(waiting(n, 3.0 + n / 100, new=255 if n == 20 else 5) for n in range(1, 40))]
    growing, timely = BatchBuilder(judged(*requests), BatchLimits(8)), FeasibleQueue(0.1)
    timely.add(requests)
    assert not timely.add_urgent(growing, 0.5, 0.1)
    assert growing.requests == requests[:1]
    assert list(timely) == requests[1:]
    timely.compact(0)
    assert list(timely) == requests[1:]


def test_tidied_orders_hold_those_that_wait_and_no_others() -> None:
    requests = [waiting(n, 9.0 + n) for n in range(100)]
    judged(*requests)
    timely = FeasibleQueue(0.1)
    timely.add(requests)
    timely.remove_late(0.5)
    for request in requests[:90]:
        request.scheduled = True
    timely.compact(10)
    assert list(timely) == requests[90:]
    growing = BatchBuilder(judged(*requests), BatchLimits(64))
    timely.add_by_utility(growing, 0.5)
    assert growing.requests == requests[90:]


@pytest.mark.parametrize("spec", ["wisp-promise", "wisp-paper:late_lane=true", "knapsack", "edf", "fcfs"])
def test_a_queue_is_as_long_as_what_it_has_not_handed_out(spec: str) -> None:
    queue = filled_queue(spec, [waiting(n, 9.0 + n) for n in range(7)], limits=BatchLimits(3))
    lengths = [len(queue)]
    while queue:
        queue.next_batch(0.5)
        lengths.append(len(queue))
    assert lengths == [7, 4, 1, 0]


def test_a_request_is_misjudged_by_a_factor_on_its_own_part() -> None:
    """Log-normal with the stream of the seed; the 100 ms of an empty batch are known."""
    request = waiting(0, 9.0)
    judged(request, error=EstimatorError(noise=0.5))
    noise = exp(0.5 * Random("0/estimator").gauss(0, 1))
    assert request.isolated_s == pytest.approx(0.1 + 0.05 * noise)
    assert request.error_s == pytest.approx(0.05 * noise - 0.05)
    assert abs(log(noise)) > 0.05


def test_an_estimator_of_another_model_is_refused_with_both_names() -> None:
    one, other = (
        Profile(name, "verifier", "here", model, "float32", "measured", "interactions", {})
        for name, model in (("a", "m-8b"), ("b", ""))
    )
    with pytest.raises(SkitError, match="'a' is of m-8b, but the server runs no known model"):
        estimate_with_profile(one, other)
    with pytest.raises(SkitError, match="'b' is of no known model, but the server runs m-8b"):
        estimate_with_profile(other, one)
