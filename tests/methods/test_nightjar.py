"""What nightjar learns for each batch size, and when it takes drafting up again: worked out by hand from its rule."""

from random import Random

import pytest
from environments import ENVIRONMENT
from known_drafts import KnownDrafter, at

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.nightjar import Bins, _NightjarPolicy
from specbench_kit.methods.spec import parse_method


class Scripted(Random):
    """Draws these numbers, and length 2 whenever a length is asked for."""

    def __init__(self, *draws: float) -> None:
        super().__init__(0)
        self.draws = list(draws)

    def random(self) -> float:
        return self.draws.pop(0)

    def randrange(self, *_: object) -> int:  # type: ignore[override]
        return 2


@pytest.mark.parametrize(
    ("switch_s", "length"), [(0.0, 3), (0.09, 3), (0.11, 3), (0.13, 0), (0.15, 0)]
)
def test_drafting_is_taken_up_again_only_if_it_is_faster_by_what_that_costs(
    switch_s: float, length: int
) -> None:
    """A token takes 100 ms without a draft and 60 with three: less than 120 ms for taking it up are worth it."""
    bins = Bins(4, 8, Random(0))
    bins.learn(0, 0.1)
    bins.learn(3, 0.06)
    assert bins.best(switch_s) == length


def test_means_are_of_all_rounds_and_what_was_never_tried_is_not_best() -> None:
    bins = Bins(4, 8, Random(0))
    assert bins.best(0.0) == 0
    for seconds in (0.02, 0.04, 0.06):
        bins.learn(1, seconds)
    assert bins.means_s[1] == pytest.approx(0.04)
    assert bins.best(0.0) == 1
    bins.learn(2, 0.03)
    assert bins.best(0.0) == 2


def test_bin_b_of_a_block_explores_with_probability_1_over_b() -> None:
    """Blocks of 1, 2 and 4 bins: the first bin of each explores always, the second at a draw below 1/2, and so on."""
    bins = Bins(4, 1, Scripted(0.9, 0.9, 0.6, 0.9, 0.4, 0.4, 0.2))
    bins.learn(1, 0.01)
    assert [bins.play(0.0) for _ in range(7)] == [2, 2, 1, 2, 2, 1, 2]
    assert (bins.block, bins.bin) == (4, 4)


def test_a_length_is_kept_for_a_bin() -> None:
    bins = Bins(4, 3, Scripted(0.9, 0.9, 0.6))
    bins.learn(1, 0.01)
    assert [bins.play(0.0) for _ in range(9)] == [2, 2, 2, 2, 2, 2, 1, 1, 1]


def policy_of(spec: str) -> _NightjarPolicy:
    method = parse_method(spec).prepare(ENVIRONMENT)
    assert isinstance(method, LatencyAware)
    assert method.latencies is not None
    policy = method.policy_with(method.latencies)
    assert isinstance(policy, _NightjarPolicy)
    return policy


def round_of(policy: _NightjarPolicy, accepted: list[int], took_s: float, produced: int = 1) -> int:
    """One round of requests that accept so many tokens; returns what each drafted."""
    clock = ModelledClock()
    drafter = KnownDrafter([[at()] * 30] * len(accepted), clock=clock, produced=produced)
    policy.draft(drafter)
    chosen = policy.choose(drafter.drafts)
    clock.wait_until(took_s)
    accepted = [min(count, len(nodes)) for count, nodes in zip(accepted, chosen, strict=True)]
    policy.observe(drafter.verdicts(chosen, accepted))
    return drafter.drafts[0].tree.last


def test_each_batch_size_learns_by_itself_and_a_prefill_says_nothing() -> None:
    policy = policy_of("nightjar:max_draft=3,bin=1")
    length = round_of(policy, [2, 0], took_s=0.3)
    tokens = 2 + min(2, length)
    assert policy.bins(2).means_s[length] == pytest.approx(0.3 / tokens)
    assert sum(policy.bins(1).counts) == 0
    round_of(policy, [1], took_s=0.3, produced=0)
    assert sum(policy.bins(1).counts) == 0


def test_what_was_missed_without_a_draft_is_read_again_and_not_charged_to_the_length() -> None:
    """Two tokens were committed without a draft; the first forward reads them too, for two tokens at 10 us each."""
    policy = policy_of("nightjar:max_draft=1,bin=1")
    for _ in range(2):
        policy.bins(1).left = 1
        policy.bins(1).length = 0
        assert round_of(policy, [0], took_s=0.1) == 0
    assert policy.missed == {"0": 2}
    assert policy.bins(1).means_s[0] == pytest.approx(0.1)
    policy.bins(1).left, policy.bins(1).length = 1, 1
    assert round_of(policy, [1], took_s=0.1) == 1
    draft = policy.latencies.draft
    switch_s = draft.seconds([(3, 97)]) - draft.seconds([(1, 99)])
    assert switch_s > 1.9e-5
    assert policy.switch_s == pytest.approx(switch_s)
    assert policy.bins(1).means_s[1] == pytest.approx((0.1 - switch_s) / 2)
    assert policy.missed == {"0": 0}
    policy.forget("0")
    assert policy.missed == {}


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SkitError, match="nightjar: bin must be at least 1, not 0"):
        parse_method("nightjar:bin=0")
