"""What sglang-ema, ucb-specstop, banditspec and tapout learn and play: their rules' own figures."""

from collections import Counter
from math import sqrt
from random import Random

import pytest
from environments import ENVIRONMENT
from known_drafts import KnownDrafter, at
from tiny_predictors import PAIR

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.arms import ArmsMethod, arm_specs
from specbench_kit.methods.banditspec import (
    BanditSpec,
    Exp3,
    Ucb,
    _BanditSpecPolicy,
    confidence_radius,
)
from specbench_kit.methods.sglang_ema import LengthState, SGLangEma, _SGLangEmaPolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.tapout import _TapOutPolicy, blended
from specbench_kit.methods.ucb_specstop import (
    LengthTimes,
    UcbSpecStop,
    _UcbSpecStopPolicy,
    link_state,
)

ONE = at()


def round_of(
    policy: object,
    accepted: list[int],
    *,
    took_s: float = 0.1,
    message_s: float = 0.0,
    **drafting: object,
) -> list[int]:
    """One round of requests that accept so many tokens, after a message over the link; returns what each drafted."""
    clock = ModelledClock()
    clock.charge("link", message_s)
    drafter = KnownDrafter([[ONE] * 30] * len(accepted), clock=clock, **drafting)  # type: ignore[arg-type]
    policy.draft(drafter)  # type: ignore[attr-defined]
    chosen = policy.choose(drafter.drafts)  # type: ignore[attr-defined]
    clock.wait_until(took_s)
    policy.observe(drafter.verdicts(chosen, accepted))  # type: ignore[attr-defined]
    return [draft.tree.last for draft in drafter.drafts]


@pytest.mark.parametrize(("accepted", "average", "steps"), [(3, 2.96482, 5), (0, 0.07037, 1)])
def test_sglang_ema_follows_the_average(accepted: int, average: float, steps: int) -> None:
    """The first decision falls after ten rounds of warm-up and five more, as in SGLang's AdaptiveStepSlot."""
    slot = LengthState(SGLangEma(), 1)
    assert (slot.steps, slot.average) == (3, 2.0)
    for _ in range(14):
        slot.learn(accepted)
    assert slot.steps == 3
    slot.learn(accepted)
    assert slot.average == pytest.approx(average, abs=1e-5)
    assert slot.steps == steps


def test_sglang_ema_moves_only_when_it_is_time() -> None:
    """SGLang 0.5.23's AdaptiveStepSlot, run beside on 800 random streams of 200 rounds, moves in the same rounds."""
    slot, lengths = LengthState(SGLangEma(), 1), []
    for _ in range(26):
        slot.learn(slot.steps)
        lengths.append(slot.steps)
    assert lengths == [3] * 14 + [5] * 10 + [7] * 2


def test_sglang_ema_tries_again_where_it_does_not_draft() -> None:
    slot = LengthState(SGLangEma(warmup=0, interval=1), 32)
    lengths = []
    for _ in range(30):
        slot.learn(0)
        lengths.append(slot.steps)
    assert set(lengths) == {0, 1}
    first = lengths.index(0)
    assert lengths[first : first + 4] == [0, 1, 0, 1]
    assert LengthState(SGLangEma(), 64).candidates == (0,)


def test_sglang_ema_keeps_batches_of_different_size_apart() -> None:
    policy = _SGLangEmaPolicy(SGLangEma(warmup=1, interval=1))
    assert round_of(policy, [0]) == [3]
    assert policy.state(7).rounds == 1
    assert policy.state(8) is policy.state(31)
    assert policy.state(8).rounds == 0
    assert (policy.state(8).steps, policy.state(40).steps, policy.state(64).steps) == (3, 1, 0)


def test_sglang_ema_caps_a_length_that_does_not_rise() -> None:
    slot = LengthState(SGLangEma(warmup=0, interval=1, alpha=1.0, ceiling=1.0, down=-9.0), 1)
    slot.learn(0.5)
    assert slot.steps == 1


def test_ucb_specstop_plays_the_least_lower_bound() -> None:
    arms = [LengthTimes(300, 4, 3), LengthTimes(420, 7, 4), LengthTimes(330, 6, 3)]
    assert [arm.bound(10, 1.0, "ratio") for arm in arms] == pytest.approx(
        [74.3429, 59.5664, 54.5620], abs=1e-4
    )
    policy = _UcbSpecStopPolicy(UcbSpecStop(k_max=3, beta=0))
    policy.lengths = arms
    assert round_of(policy, [0]) == [3]


def test_ucb_specstop_tries_every_length_once_and_learns_ratios_of_sums() -> None:
    policy = _UcbSpecStopPolicy(UcbSpecStop(k_max=3, beta=0))
    lengths = [round_of(policy, [1, 0], took_s=0.05 * length)[0] for length in (1, 2, 3, 1)]
    assert lengths == [1, 2, 3, 1]
    assert [(arm.milliseconds, arm.tokens) for arm in policy.lengths] == [
        (pytest.approx(100.0), 6),
        (pytest.approx(100.0), 3),
        (pytest.approx(150.0), 3),
    ]
    mean = LengthTimes()
    for milliseconds, tokens in ((10, 1), (10, 4)):
        mean.learn(milliseconds, tokens)
    assert mean.bound(10, 0.0, "mean") == pytest.approx(6.25)
    assert mean.bound(10, 0.0, "ratio") == pytest.approx(4.0)


def test_a_round_that_brings_a_prompt_in_says_nothing_of_a_length() -> None:
    policy = _UcbSpecStopPolicy(UcbSpecStop(k_max=3))
    assert [round_of(policy, [1], produced=0)[0] for _ in range(3)] == [1, 1, 1]
    assert policy.lengths[0].rounds == 0


def test_ucb_specstop_needs_a_link() -> None:
    with pytest.raises(
        SkitError,
        match="ucb-specstop: only a deployment models what it does: add --deployment NAME",
    ):
        parse_method("ucb-specstop").prepare(environment(PAIR, None))


def test_the_bandit_of_banditspec() -> None:
    """K = 2, L = 4, t = 10: in tokens the bounds are 7.3987 and 6.8978; rewards are shares of L."""
    bounds = [
        mean + 4 * confidence_radius(count, 10, 2, 0.05) for count, mean in ((4, 2.5), (6, 3.0))
    ]
    assert bounds == pytest.approx([7.3987, 6.8978], abs=1e-4)
    bandit = Ucb(2, BanditSpec())
    bandit.counts, bandit.means = [4, 5], [1.5 / 4, 2 / 4]
    assert bandit.pick() == 0
    narrow = Ucb(2, BanditSpec(radius=0))
    narrow.counts, narrow.means = [4, 5], [1.5 / 4, 2 / 4]
    assert narrow.pick() == 1


def test_exp3_of_banditspec() -> None:
    """Two tokens of at most five, played with a chance of .5: a loss of 1.5."""
    bandit = Exp3(2, Random(0))
    bandit.learn(0, reward=(2 - 1) / 4)
    assert bandit.losses == [1.5, 0.0]
    assert bandit.chances()[0] == pytest.approx(0.34878, abs=1e-5)


@pytest.mark.parametrize("algorithm", ["ucb", "exp3"])
def test_banditspec_finds_the_length_that_pays(algorithm: str) -> None:
    """Two tokens of each draft are right, and every token drafted takes as long as half a round."""
    policy = _BanditSpecPolicy(BanditSpec(algorithm=algorithm, radius=0.1))  # type: ignore[arg-type]
    played: Counter[int] = Counter()
    for _ in range(400):
        drafter = KnownDrafter([[ONE] * 30], clock=ModelledClock())
        policy.draft(drafter)
        length = drafter.drafts[0].tree.last
        drafter.clock.wait_until(1 + 0.2 * length)
        policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [min(2, length)]))
        played[length] += 1
    assert set(played) == {0, 1, 2, 3, 4}
    assert played.most_common(1)[0][0] == 2


def test_a_request_of_banditspec_learns_alone_unless_the_run_does() -> None:
    for share, lengths in (("request", [0, 0]), ("run", [1, 1])):
        policy = _BanditSpecPolicy(BanditSpec(share=share, reward="length"))  # type: ignore[arg-type]
        round_of(policy, [0, 0])
        policy.forget("0")
        policy.forget("1")
        assert round_of(policy, [0, 0]) == lengths


def test_a_shared_bandit_learns_from_all_requests_of_a_batch() -> None:
    """One request accepts nothing and the others one and two tokens of at most four: a reward of a quarter."""
    policy = _BanditSpecPolicy(
        BanditSpec(arms="fixed-k.k=4+fixed-k.k=3", reward="length", share="run")
    )
    round_of(policy, [0, 1, 2])
    bandit = policy.bandits[""]
    assert isinstance(bandit, Ucb)
    assert (bandit.counts, bandit.means) == ([1, 0], [pytest.approx(0.25), 0.0])


def test_each_bandit_of_a_batch_learns_from_its_own_request() -> None:
    policy = _BanditSpecPolicy(BanditSpec(arms="fixed-k.k=4+fixed-k.k=3", reward="length"))
    round_of(policy, [0, 1, 2])
    means = [bandit.means[0] for bandit in policy.bandits.values() if isinstance(bandit, Ucb)]
    assert means == pytest.approx([0.0, 0.25, 0.5])


def test_arms_of_one_batch_draft_side_by_side() -> None:
    policy = _BanditSpecPolicy(BanditSpec(reward="length"))
    round_of(policy, [0])
    assert round_of(policy, [1, 0]) == [1, 0]


def test_the_reward_of_tapout() -> None:
    assert blended(accepted=3, drafted=4, longest=8) == pytest.approx(0.5625)
    assert blended(accepted=0, drafted=0, longest=8) == 0


def test_tapout_plays_the_rule_with_the_highest_bound() -> None:
    method = parse_method("tapout:arms=autoregressive+svip+fixed-k.k=4+threshold")
    policy = method.prepare(ENVIRONMENT).policy()
    assert isinstance(policy, _TapOutPolicy)
    assert [round_of(policy, [2])[0] for _ in range(4)] == [0, 8, 4, 8]
    assert policy.means == pytest.approx([0.0, 0.25, 0.375, 0.25])
    bounds = [mean + sqrt(2 * 1.3862943611198906) for mean in policy.means]
    assert round_of(policy, [2]) == [4]
    assert max(bounds) == bounds[2]
    assert policy.counts == [1, 1, 2, 1]


def test_how_arms_are_written() -> None:
    assert arm_specs("autoregressive+svip+fixed-k.k=4+threshold") == [
        "autoregressive",
        "svip",
        "fixed-k.k=4",
        "threshold",
    ]
    assert arm_specs("fixed-k.k=1..3") == ["fixed-k.k=1", "fixed-k.k=2", "fixed-k.k=3"]
    assert arm_specs("threshold.threshold=0.3+max_draft=4+svip") == [
        "threshold.threshold=0.3+max_draft=4",
        "svip",
    ]


def test_arms_that_take_the_likeliest_tokens_go_together() -> None:
    method = parse_method("tapout:arms=adaspec+tetris").prepare(ENVIRONMENT)
    assert method.proposal == "top"
    assert isinstance(method, ArmsMethod)
    assert len(method.uses()["arms"]) == 2


@pytest.mark.parametrize(
    ("arms", "wrong"),
    [
        ("svip", "tapout: arms must be two or more, as in svip"),
        ("svip+svip", "tapout: the arm svip is named twice"),
        (
            "svip+specinfer",
            "tapout: 'specinfer' cannot be an arm: arms are methods that draft chains",
        ),
        ("svip+oracle", "tapout: 'oracle' cannot be an arm"),
        (
            "svip+tetris",
            "tapout: some of its arms draw tokens and some take the most probable: name arms of one kind",
        ),
        ("svip+fixed-k.k=0", "fixed-k: k must be at least 1, not 0"),
        ("svip+nothing", "unknown method 'nothing'"),
        ("svip+fixed-k.q=1", "fixed-k: unknown option 'q'; known: k, drafter"),
    ],
)
def test_arms_that_make_no_sense(arms: str, wrong: str) -> None:
    with pytest.raises(SkitError, match=wrong):
        parse_method(f"tapout:arms={arms}")


def test_ucb_specstop_keeps_states_of_the_link_apart() -> None:
    """Lengths that were tried with messages of 20 ms are yet to be tried with messages of 40 ms."""
    assert [link_state(seconds) for seconds in (0.0, 0.0004, 0.001, 0.02, 0.03, 0.04)] == [
        0,
        0,
        0,
        4,
        5,
        5,
    ]

    def played(context: str) -> list[int]:
        policy = _UcbSpecStopPolicy(UcbSpecStop(k_max=3, context=context))  # type: ignore[arg-type]
        return [
            round_of(policy, [1], message_s=message_s)[0]
            for message_s in (0.02, 0.02, 0.04, 0.02, 0.04, 0.04)
        ]

    assert played("link") == [1, 2, 1, 3, 2, 3]
    assert played("run")[:3] == [1, 2, 3]
