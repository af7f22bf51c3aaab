"""How goodput, sglang-throughput, tetris and vllm-adaptive weigh tokens against time: their rules' own figures."""

from dataclasses import replace
from math import exp, log

import pytest
from environments import ENVIRONMENT
from known_drafts import KnownDrafter, at
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import BatchSums, LatencyModel, TableModel, sums_of
from specbench_kit.methods.base import Latencies, LinkCosts
from specbench_kit.methods.goodput import Goodput, _GoodputPolicy
from specbench_kit.methods.sglang_throughput import SGLangThroughput, _SGLangThroughputPolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.tetris import Tetris
from specbench_kit.methods.vllm_adaptive import (
    AcceptanceFit,
    VllmAdaptive,
    _VllmAdaptivePolicy,
    best_first,
)

ONE = at()


class OfLength(LatencyModel):
    """A verification of `base_s` with `each_s` per token of the longest row; or `free` tokens more than the rows."""

    def __init__(self, base_s: float, each_s: float) -> None:
        self.base_s, self.each_s = base_s, each_s

    def of_sums(self, sums: BatchSums) -> float:
        return self.base_s + self.each_s * sums.longest


class FreeAtFirst(LatencyModel):
    """10 s for two tokens more than the rows of two requests, .8 s for each further one."""

    def of_sums(self, sums: BatchSums) -> float:
        return 10 + 0.8 * max(0, sums.linear - sums.requests - 2)


FREE = TableModel((0.0,))


def test_goodput_stops_at_the_first_fall() -> None:
    policy = _GoodputPolicy(Goodput(), Latencies(TableModel((2.0,)), OfLength(20.0, 2.0)))
    drafter = KnownDrafter([[ONE] * 9] * 4)
    promises = policy.expected_speeds(drafter.drafts)
    assert promises == pytest.approx([0.2, 0.2615, 0.292, 0.298, 0.2919], abs=1e-4)
    policy.draft(drafter)
    assert {draft.tree.last for draft in drafter.drafts} == {3}


def test_goodput_decides_again_after_its_interval_and_counts_tested_tokens_only() -> None:
    policy = _GoodputPolicy(Goodput(interval=2), Latencies(TableModel((2.0,)), OfLength(20.0, 2.0)))
    for length in (3, 3, 2):
        drafter = KnownDrafter([[ONE] * 9] * 4)
        policy.draft(drafter)
        assert {draft.tree.last for draft in drafter.drafts} == {length}
        before = policy.acceptance
        policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [1, 0, 0, 0]))
        if length == 3:
            assert policy.acceptance == pytest.approx(0.85 * before + 0.15 * 1 / 5)


def test_goodput_asks_now_and_then_where_drafting_does_not_pay() -> None:
    policy = _GoodputPolicy(
        Goodput(interval=1), Latencies(TableModel((50.0,)), OfLength(20.0, 2.0))
    )
    lengths = []
    for _ in range(20):
        drafter = KnownDrafter([[ONE] * 9])
        policy.draft(drafter)
        lengths.append(drafter.drafts[0].tree.last)
        policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [0]))
    assert lengths == ([0] * 9 + [1]) * 2


def test_goodput_over_a_link_does_not_underrate_long_drafts() -> None:
    """Rounds of 8 of 8 and 0 of 1 tokens: as published (.7 + .15 .3) .85 = .63325, with the link more tokens count.

    The averages begin at 5.6 of 8, and are 5.96 of 8 after the first round and 5.066 of 6.95 after the second.
    """
    rates = []
    for link in (None, LinkCosts(rtt_s=1.0)):
        policy = _GoodputPolicy(Goodput(), Latencies(FREE, OfLength(20.0, 2.0), link))
        for accepted in (8, 0):
            drafter = KnownDrafter([[ONE] * 9])
            for _ in range(8):
                drafter.extend(drafter.drafts)
            policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [accepted]))
        rates.append(policy.acceptance)
    assert rates == pytest.approx([0.63325, 5.066 / 6.95])


@pytest.mark.parametrize(("tested", "length"), [(4.0, 7), (400.0, 5)])
def test_goodput_over_a_link_shortens_drafts_once_the_lower_rate_is_shown(
    tested: float, length: int
) -> None:
    """It begins with 7 tokens, at a rate of .7; 5 are best at .6, 6 at .64, 8 at .74.

    A mean of 4 tokens a round, where the newest has the weight .15, rests on 4 x 1.85 / .15 = 49.3 tokens: the standard
    error of the rate is .0698, so that .7395 is likely too, and 7 stays between 5 and 8. With 400 it is .00698.
    """
    policy = _GoodputPolicy(
        Goodput(interval=1), Latencies(TableModel((2.0,)), TableModel((20.0,)), LinkCosts(60.0))
    )
    policy.draft(KnownDrafter([[ONE] * 9]))
    assert policy.length == 7
    policy.acceptance, policy.mean_tested = 0.6, tested
    policy.draft(KnownDrafter([[ONE] * 9]))
    assert policy.length == length


COSTS = TableModel((9.0, 10.0, 11.0, 14.0))


def test_sglang_throughput_extrapolates_positions_that_it_does_not_draft() -> None:
    policy = _SGLangThroughputPolicy(
        SGLangThroughput(steps=2, max_draft=3, window=5, interval=5), Latencies(FREE, COSTS)
    )
    for accepted in ([2, 2, 2, 1, 0],) * 5:
        drafter = KnownDrafter([[ONE] * 5] * 5)
        policy.draft(drafter)
        policy.observe(drafter.verdicts(policy.choose(drafter.drafts), accepted))
    assert policy.acceptance_shares() == pytest.approx([0.8, 0.6, 0.45])
    assert [
        (1 + sum(policy.acceptance_shares()[:k])) / COSTS.by_new_tokens_s[k] for k in (1, 2, 3)
    ] == pytest.approx([0.18, 0.2182, 0.2036], abs=1e-4)
    policy.draft(KnownDrafter([[ONE] * 5] * 5))
    assert policy.steps == 2


def test_sglang_throughput_moves_and_forgets_what_it_no_longer_drafts() -> None:
    policy = _SGLangThroughputPolicy(
        SGLangThroughput(steps=3, max_draft=3, window=4, interval=2), Latencies(FREE, COSTS)
    )
    for rounds, steps in ((4, 3), (1, 1)):
        for _ in range(rounds):
            drafter = KnownDrafter([[ONE] * 5])
            policy.draft(drafter)
            assert policy.steps == steps
            policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [0]))
    assert list(map(len, policy.windows)) == [4, 0, 0]
    for _ in range(4):
        drafter = KnownDrafter([[ONE] * 5])
        policy.draft(drafter)
        policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [3]))
    assert policy.acceptance_shares() == [1.0, 1.0, 1.0]
    assert policy.steps > 1


@pytest.mark.parametrize(("link", "steps"), [(None, 1), (LinkCosts(rtt_s=1.0), 2)])
def test_sglang_throughput_over_a_link_shortens_drafts_once_shorter_ones_are_shown_to_be_faster(
    link: LinkCosts | None, steps: int
) -> None:
    """Four of five rounds accept one token and one both: 2 tokens in 11 s against 2.2 in 13 s, a token less in each.

    Four rounds gain 2/11 - 2/13 = .028 tokens a second, one loses 3/13 - 2/11 = .049: .0126 on average, with a standard
    error of .0154.
    """
    costs = Latencies(FREE, TableModel((9.0, 10.0, 12.0)), link)
    policy = _SGLangThroughputPolicy(
        SGLangThroughput(steps=2, max_draft=2, window=5, interval=5), costs
    )
    for accepted in (1, 1, 1, 1, 2):
        drafter = KnownDrafter([[ONE] * 5])
        policy.draft(drafter)
        policy.observe(drafter.verdicts(policy.choose(drafter.drafts), [accepted]))
    policy.draft(KnownDrafter([[ONE] * 5]))
    assert policy.steps == steps


def test_tetris_gives_the_places_of_the_batch_to_the_likeliest_tokens() -> None:
    rows = [[at(probability=p) for p in chances] for chances in ((0.9, 0.8, 0.7), (0.6, 0.5, 0.5))]
    policy, drafter = Tetris(k=2, extra=1).policy(), KnownDrafter(rows)
    policy.draft(drafter)
    chosen = policy.choose(drafter.drafts)
    assert chosen == [[1, 2, 3], [1]]
    trees = [draft.tree for draft in drafter.drafts]
    assert sum(
        tree.path_probability(n) for tree, nodes in zip(trees, chosen, strict=True) for n in nodes
    ) == pytest.approx(2.724)
    assert sum(tree.path_probability(n) for tree in trees for n in (1, 2)) == pytest.approx(2.52)


def test_tetris_alone_drafts_what_it_sends() -> None:
    policy, drafter = Tetris(k=2, extra=1).policy(), KnownDrafter([[ONE] * 5])
    policy.draft(drafter)
    assert policy.choose(drafter.drafts) == [[1, 2]]
    assert drafter.drafts[0].tree.last == 2


def chances(*of: float) -> list[float]:
    result, product = [], 1.0
    for entry in of:
        product *= entry
        result.append(product)
    return result


def test_vllm_adaptive_verifies_the_slots_that_pay() -> None:
    scores = [chances(0.9, 0.8, 0.5), chances(0.6, 0.5, 0.4)]
    policy = _VllmAdaptivePolicy(VllmAdaptive(max_draft=3), Latencies(FREE, FreeAtFirst()))
    drafts = KnownDrafter([[], []]).drafts
    assert policy.count(drafts, [iter(entry) for entry in scores]) == 4
    ranked = list(best_first([iter(entry) for entry in scores]))
    rates, expected = [2 / 10], 2.0
    for slots, (_, score) in enumerate(ranked, 1):
        expected += score
        rates.append(expected / (10 + 0.8 * max(0, slots - 2)))
    assert rates == pytest.approx([0.2, 0.29, 0.362, 0.39074, 0.39483, 0.39355, 0.37879], abs=1e-5)
    assert [request for request, _ in ranked[:4]] == [0, 0, 1, 0]


@pytest.mark.parametrize("row", [(1, 0), (1, 30), (4, 7)])
def test_sums_of_a_request_that_gets_longer(row: tuple[int, int]) -> None:
    older_requests = [(2, 9), (3, 0)]
    assert sums_of([*older_requests, row]).longer(row) == sums_of(
        [*older_requests, (row[0] + 1, row[1])]
    )


def test_vllm_adaptive_fits_one_damped_step() -> None:
    fit = AcceptanceFit(1, damping=50, l2=1e-3)
    for probability, accepted in ((0.9, True), (0.6, False), (0.8, True)):
        fit.add(0, log(probability / (1 - probability)), accepted)
    fit.refit()
    assert (fit.slope, fit.intercepts[0]) == pytest.approx((0.21506, 1.42671), abs=1e-5)
    fit.refit()
    assert (fit.slope, fit.intercepts[0]) == pytest.approx((0.21506, 1.42671), abs=1e-5)


def test_a_slope_that_would_turn_negative_stays() -> None:
    fit = AcceptanceFit(1, damping=0, l2=1e-3)
    for feature, accepted in ((2.0, False), (-2.0, True)):
        fit.add(0, feature, accepted)
    fit.refit()
    assert fit.slope == 0
    assert fit.intercepts[0] < 1.5


def test_vllm_adaptive_takes_the_number_of_slots_from_the_round_before() -> None:
    options = VllmAdaptive(max_draft=3, warmup_refits=0, refit_every=100)
    policy = _VllmAdaptivePolicy(options, Latencies(FREE, FreeAtFirst()))
    policy.fit.slope, policy.fit.intercepts = 1.0, [0.0] * 3
    rows = [
        [at(confidence=c) for c in (0.9, 0.8, 0.5)],
        [at(confidence=c) for c in (0.6, 0.5, 0.4)],
    ]
    for ideal in ([[1, 2, 3], [1, 2, 3]], [[1, 2, 3], [1]]):
        drafter = KnownDrafter(rows)
        policy.draft(drafter)
        chosen = policy.choose(drafter.drafts)
        assert chosen == ideal  # a new request is taken for certain
        policy.observe(drafter.verdicts(chosen, [1, 0]))
    assert policy.fit.sums[0].count == 4
    assert policy.fit.sums[1].count == 2
    assert policy.fit.sums[2].count == 0
    policy.forget("0")
    assert set(policy.scores) == {"1"}


@pytest.mark.parametrize(
    ("feature", "value"), [("max", log(4)), ("margin", log(0.8 / 0.1)), ("drawn", log(1 / 3))]
)
def test_what_vllm_adaptive_judges_by(feature: str, value: float) -> None:
    method = parse_method(f"vllm-adaptive:feature={feature}").prepare(
        replace(ENVIRONMENT, server_decodes=False)
    )
    policy = method.policy()
    assert isinstance(policy, _VllmAdaptivePolicy)
    drafter = KnownDrafter([[at(confidence=0.8, margin=0.7, probability=0.25)]])
    policy.draft(drafter)
    policy.fit.slope, policy.fit.intercepts[0] = 1.0, 0.0
    policy.observe(drafter.verdicts([[1]], [1]))
    assert policy.scores["0"] == pytest.approx([1 / (1 + exp(-value))])


@pytest.mark.parametrize(
    ("option", "proposal"), [("", "sample"), (":budget=fresh", "top"), (":feature=drawn", "top")]
)
def test_what_would_bias_drawn_tokens_takes_the_likeliest(option: str, proposal: str) -> None:
    assert parse_method(f"vllm-adaptive{option}").prepare(ENVIRONMENT).proposal == proposal


def test_they_do_not_verify_everything() -> None:
    """A warm vllm-adaptive sends less than it drafts where a slot costs much."""
    target = tiny_llama(0)
    runners = make_runner(target, 4, 200), make_runner(disturbed(target, 0.01), 4, 200)
    method = VllmAdaptive(max_draft=4, refit_every=3, warmup_refits=2)
    object.__setattr__(method, "latencies", Latencies(FREE, OfLength(1.0, 1.0)))
    records = decode(
        method, runners, make_requests(random_prompts([5, 9, 3], 64), 40), batch_size=3
    )
    rounds = [step for record in records.values() for step in record.rounds]
    assert any(step.submitted < step.drafted for step in rounds)
    assert any(step.submitted == step.drafted for step in rounds)


@pytest.mark.parametrize("name", ["goodput", "sglang-throughput", "vllm-adaptive"])
def test_they_need_the_latencies(name: str) -> None:
    with pytest.raises(
        SkitError, match=f"{name} needs the latencies of the pair: call prepare first"
    ):
        parse_method(name).policy()
    assert set(parse_method(name).prepare(ENVIRONMENT).uses()["latencies"]) == {
        "draft",
        "verify",
        "link",
    }
    blind = parse_method(f"{name}:link=false").prepare(ENVIRONMENT)
    assert set(blind.uses()["latencies"]) == {"draft", "verify"}


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("goodput:interval=0", "goodput: interval must be at least 1, not 0"),
        (
            "sglang-throughput:steps=9",
            "sglang-throughput: steps must lie in 1..max_draft, not 9 of 8",
        ),
        ("tetris:k=0", "tetris: k must be at least 1, not 0"),
        ("vllm-adaptive:l2=0", "vllm-adaptive: damping must not be negative, and l2 above 0"),
    ],
)
def test_options_that_make_no_sense(spec: str, wrong: str) -> None:
    with pytest.raises(SkitError, match=wrong):
        parse_method(spec)
