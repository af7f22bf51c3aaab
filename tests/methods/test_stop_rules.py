"""Where svip, adaedl and specdecpp stop: the figures of their papers' rules."""

from math import log, sqrt
from pathlib import Path

import pytest
from environments import ENVIRONMENT
from known_drafts import KnownDrafter, at
from tiny_predictors import confidence_predictor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import DistributionStats
from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.verification import Verdict
from specbench_kit.methods.adaedl import AdaEdl, _AdaEdlPolicy
from specbench_kit.methods.entropy_change import EntropyChange
from specbench_kit.methods.margin import Margin
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.specdecpp import SpecDecPp, _SpecDecPpPolicy
from specbench_kit.methods.svip import Svip

COIN = log(2)
BIASED = -0.8 * log(0.8) - 0.2 * log(0.2)


def lengths(policy: Policy, *rows: list[float]) -> tuple[list[int], list[int]]:
    """Tokens drafted and sent, of requests whose tokens are drawn with these entropies, or confidences above 1."""
    drafter = KnownDrafter([[at(entropy=entropy) for entropy in row] for row in rows])
    policy.draft(drafter)
    return [draft.tree.last for draft in drafter.drafts], list(
        map(len, policy.choose(drafter.drafts))
    )


def test_svip_keeps_the_token_that_it_stops_at() -> None:
    assert sqrt(0.15 * COIN) == pytest.approx(0.32245, abs=1e-5)
    assert sqrt(0.15 * BIASED) == pytest.approx(0.27397, abs=1e-5)
    assert lengths(Svip().policy(), [BIASED] * 3 + [COIN] * 2) == ([4], [4])
    assert lengths(Svip().policy(), [COIN] * 2, [BIASED] * 9) == ([1, 9], [1, 9])
    assert lengths(Svip(max_draft=5).policy(), [0.0] * 9) == ([5], [5])


def test_svip_stops_above_an_entropy_of_six_tenths() -> None:
    assert lengths(Svip().policy(), [0.6001, 0.0], [0.5999, 0.0]) == ([1, 2], [1, 2])


def test_adaedl_does_not_send_the_token_that_it_stops_at_but_always_one() -> None:
    assert 1 - sqrt(0.2 * COIN) == pytest.approx(0.62767, abs=1e-5)
    assert lengths(AdaEdl(threshold=0.62).policy(), [COIN] * 4) == ([4], [4])
    assert lengths(AdaEdl(threshold=0.63).policy(), [COIN] * 4) == ([2], [1])
    assert lengths(AdaEdl(threshold=0.63).policy(), [0.0, 0.1, COIN, 0.0], [0.0]) == (
        [3, 1],
        [2, 1],
    )
    assert lengths(AdaEdl(max_draft=3).policy(), [0.0] * 9) == ([3], [3])


def test_adaedl_learns_from_every_round() -> None:
    policy = _AdaEdlPolicy(AdaEdl())
    policy.learn(accepted=2, sent=4)
    assert (policy.rate, policy.threshold) == pytest.approx((0.7, 0.501))


@pytest.mark.parametrize(("accepted", "threshold"), [(3, 0.499), (4, 0.5)])
def test_adaedl_lowers_its_threshold_only_while_it_could_draft_more(
    accepted: int, threshold: float
) -> None:
    policy = _AdaEdlPolicy(AdaEdl(max_draft=4, target=0.5))
    policy.learn(accepted, sent=4)
    assert policy.threshold == pytest.approx(threshold)


def test_adaedl_counts_what_was_sent() -> None:
    policy = _AdaEdlPolicy(AdaEdl(threshold=0.63))
    drafter = KnownDrafter([[at(entropy=0.0), at(entropy=COIN)], []])
    policy.draft(drafter)
    sent = policy.choose(drafter.drafts)
    policy.observe(
        [
            Verdict(*pair, [1] if pair[1] else [], 7, 1)
            for pair in zip(drafter.drafts, sent, strict=True)
        ]
    )
    assert sent == [[1], []]
    assert policy.rate == pytest.approx(0.95)


def test_a_batch_moves_adaedl_once_a_round() -> None:
    """Eight drafts of four tokens with three accepted each teach what one of them does; so do eight of all tokens."""
    for accepted in (3, 4):
        alone, batch = (
            _AdaEdlPolicy(AdaEdl(max_draft=4, target=0.5)),
            _AdaEdlPolicy(AdaEdl(max_draft=4, target=0.5)),
        )
        for policy, requests in ((alone, 1), (batch, 8)):
            drafter = KnownDrafter([[at(entropy=0.0)] * 4] * requests)
            policy.draft(drafter)
            chosen = policy.choose(drafter.drafts)
            policy.observe(drafter.verdicts(chosen, [accepted] * requests))
        assert (batch.rate, batch.threshold) == pytest.approx((alone.rate, alone.threshold))


class Told:
    """Says what it is told of the token at each place."""

    def __init__(self, *scores: float) -> None:
        self.scores = scores

    def score(self, stats: DistributionStats, place: int) -> float:
        return self.scores[place - 1]


@pytest.mark.parametrize(
    ("options", "drafted"),
    [
        ({}, 4),
        ({"lag": 1}, 5),
        ({"max_draft": 3}, 3),
        ({"threshold": 0.04, "min_draft": 3}, 3),
        ({"threshold": 1}, 6),
    ],
)
def test_specdecpp_stops_by_the_product(options: dict[str, float], drafted: int) -> None:
    """1 - the products of .95, .9, .85, .8 are .05, .145, .27325, .4186."""
    policy = _SpecDecPpPolicy(SpecDecPp(**options), Told(0.95, 0.9, 0.85, 0.8, 1, 1))  # type: ignore[arg-type]
    assert lengths(policy, [0.0] * 6) == ([drafted], [drafted])


def test_specdecpp_says_how_well_its_predictor_is_calibrated_and_needs_one(tmp_path: Path) -> None:
    folder = confidence_predictor(tmp_path / "by hand")
    uses = parse_method(f"specdecpp:predictor={folder}").prepare(ENVIRONMENT).uses()
    assert uses["predictor"]["family"] == "logistic"
    assert "expected_calibration_error" in uses["predictor"]
    with pytest.raises(
        SkitError, match="specdecpp: no predictor for this pair of models: run skit train-predictor"
    ):
        parse_method("specdecpp").prepare(ENVIRONMENT)


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("svip:factor=0", "svip: factor must be above 0, not 0.0"),
        ("adaedl:beta1=2", "adaedl: beta1 must lie in 0..1, not 2.0"),
        ("specdecpp:lag=2", "specdecpp: lag must be 0 or 1, not 2"),
        (
            "specdecpp:min_draft=9,max_draft=3",
            "specdecpp: min_draft must lie in 1..max_draft, not 9 of 3",
        ),
    ],
)
def test_options_that_make_no_sense(spec: str, wrong: str) -> None:
    with pytest.raises(SkitError, match=wrong):
        parse_method(spec)


def test_margin_keeps_the_token_whose_two_likeliest_are_close() -> None:
    drafter = KnownDrafter([[at(margin=margin) for margin in (0.9, 0.2, 0.19, 0.9)]])
    policy = Margin().policy()
    assert isinstance(policy, Policy)
    policy.draft(drafter)
    assert (drafter.drafts[0].tree.last, policy.choose(drafter.drafts)) == (3, [[1, 2, 3]])


def test_entropy_change_stops_after_a_leap_and_not_at_a_height() -> None:
    """Roots 1.0, 1.2, 0.5, 0.7, 0.9: no leap above .2; from .9 to 1.11 there is one."""
    steady = [root**2 for root in (1.0, 1.2, 0.5, 0.7, 0.9)]
    assert lengths(EntropyChange(threshold=0.2001).policy(), [*steady, 1.11**2, 0.0]) == ([6], [6])
    assert lengths(EntropyChange(threshold=0.22).policy(), [*steady, 1.11**2, 0.0]) == ([7], [7])
