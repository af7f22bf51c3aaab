"""Lossy verification: what the rules accept, by hand, and how far the output's distribution is from the target's."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from nightly import nightly_except
from tiny_models import AUTOREGRESSIVE, disturbed, make_requests, make_runner, outputs, tiny_llama
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.look_up import LookUpDistribution
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.lossy import (
    LooseAcceptance,
    LossyRule,
    TypicalAcceptance,
    lossy_verdict,
    parse_lossy,
)
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method

SURE = [0.97, 0.01, 0.01, 0.01]
OPEN = [0.4, 0.3, 0.2, 0.1]


def accepted(rule: LossyRule, tokens: Sequence[int], *rows: list[float]) -> int:
    return rule.accepted(tokens, torch.tensor(rows))


def test_typical_acceptance_asks_less_of_a_token_where_the_target_is_undecided() -> None:
    """The entropy of OPEN is 1.2799 nats: the threshold is min(.09, .3 exp(-1.2799)) = .08342."""
    entropy = -sum(share * log(share) for share in OPEN)
    assert 0.3 * exp(-entropy) == pytest.approx(0.08342, abs=1e-5)
    rule = TypicalAcceptance()
    assert accepted(rule, [3], OPEN, OPEN) == 1
    assert accepted(TypicalAcceptance(delta=0.4), [3], OPEN, OPEN) == 1  # .11123, and so .09
    assert accepted(TypicalAcceptance(epsilon=0.2, delta=0.4), [3], OPEN, OPEN) == 0
    assert accepted(rule, [1, 0], SURE, OPEN, OPEN) == 0
    assert accepted(rule, [0, 3, 1], SURE, OPEN, SURE, OPEN) == 2


def test_loose_acceptance_forgives_what_the_target_goes_on_from() -> None:
    """The three largest of OPEN add 1.0496 nats to its entropy, those of SURE .1216, which is too little."""
    rule = LooseAcceptance(window=2)
    assert -sum(share * log(share) for share in OPEN[:3]) == pytest.approx(1.0496, abs=1e-4)
    assert accepted(LooseAcceptance(window=2, entropy=1.05), [3, 0, 0], OPEN, SURE, SURE, SURE) == 0
    assert (
        accepted(LooseAcceptance(window=2, entropy=1.05, top=4), [3, 0, 0], OPEN, SURE, SURE, SURE)
        == 3
    )
    assert accepted(rule, [3, 0, 0], OPEN, SURE, SURE, SURE) == 3
    assert accepted(rule, [3, 0, 0], SURE, SURE, SURE, SURE) == 0
    assert accepted(rule, [3, 0, 1], OPEN, SURE, SURE, SURE) == 0
    assert accepted(rule, [0, 3, 0], SURE, OPEN, SURE, SURE) == 1
    assert (
        accepted(rule, [3, 0, 0, 3, 0, 0, 3], OPEN, SURE, SURE, OPEN, SURE, SURE, OPEN, SURE) == 6
    )


def test_the_longest_accepted_path_of_a_tree_is_taken() -> None:
    tree = TokenTree(9)
    source = LookUpDistribution("test", 1.0)
    nodes = [
        tree.add(token, parent, source, 0) for token, parent in ((3, 0), (1, 0), (0, 2), (2, 1))
    ]
    target = torch.tensor([OPEN, SURE, OPEN, SURE, OPEN])
    assert lossy_verdict(TypicalAcceptance(), tree, nodes, target, None) == ([2, 3], 0)


def test_the_distance_from_the_targets_distribution_is_known_by_enumeration() -> None:
    """A draft of one token from q: accepted if p exceeds the threshold, else replaced by a draw from p.

    The output's first token has the distribution q where q is accepted, and its rest times p: by hand for two tokens.
    """
    p, q = torch.tensor([0.95, 0.05]), (0.5, 0.5)
    rule = TypicalAcceptance()
    output = [0.0, 0.0]
    for token, chance in enumerate(q):
        tree = TokenTree(0)
        node = tree.add(token, 0, LookUpDistribution("test", 1.0), 0)
        path, _ = lossy_verdict(rule, tree, [node], torch.stack((p, p)), None)
        for replacement in range(2):
            output[replacement] += chance * (
                float(replacement == token) if path else float(p[replacement])
            )
    assert output == pytest.approx([0.5 + 0.5 * 0.95, 0.5 * 0.05])
    assert sum(
        abs(share - float(mass)) for share, mass in zip(output, p, strict=True)
    ) / 2 == pytest.approx(0.025)


Prefix = tuple[int, ...]
Distribution = Callable[[Prefix], Tensor]
TOKENS, LENGTH, DRAFTED = 3, 5, 3


class Nothing(LossyRule):
    """Accepts no token, so that the target draws every one."""

    display_name = "nothing"

    def accepted(self, tokens: Sequence[int], target: Tensor) -> int:
        return 0


def sequences(
    draft: Distribution, target: Distribution, rule: LossyRule, tokens: int, drafted: int
) -> dict[Prefix, float]:
    """The exact distribution of outputs of so many tokens, over rounds of drawn drafts and a drawn bonus token."""
    reached: dict[Prefix, float] = {(): 1.0}
    vocabulary = range(len(target(())))
    for length in range(tokens):
        for text in [text for text in reached if len(text) == length]:
            weight = reached.pop(text)
            for chain in product(vocabulary, repeat=drafted):
                chance = weight
                for position, token in enumerate(chain):
                    chance *= float(draft((*text, *chain[:position]))[token])
                tree = TokenTree(0)
                for node, token in enumerate(chain):
                    tree.add(token, node, LookUpDistribution("test", 1.0), 0)
                rows = torch.stack(
                    [target((*text, *chain[:position])) for position in range(drafted + 1)]
                )
                path, _ = lossy_verdict(rule, tree, list(range(1, drafted + 1)), rows, None)
                for bonus in vocabulary:
                    output = (*text, *chain[: len(path)], bonus)[:tokens]
                    reached[output] = reached.get(output, 0.0) + chance * float(
                        rows[len(path), bonus]
                    )
    return reached


def distance(one: Mapping[Prefix, float], other: Mapping[Prefix, float], length: int) -> float:
    """The total variation distance of the first so many tokens."""
    difference: Counter[Prefix] = Counter()
    for sign, shares in ((1, one), (-1, other)):
        for tokens, share in shares.items():
            difference[tokens[:length]] += sign * share  # type: ignore[assignment]
    return sum(map(abs, difference.values())) / 2


def models(seed: int) -> tuple[Distribution, Distribution]:
    """A draft and a target of three tokens: the target's logits have a deviation of 2.5, the draft's noise one of 1."""

    @cache
    def both(text: Prefix) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(hash((seed, *text)) % 2**31)
        logits = 2.5 * torch.randn(TOKENS, dtype=torch.float64, generator=generator)
        noise = torch.randn(TOKENS, dtype=torch.float64, generator=generator)
        return (logits + noise).softmax(-1), logits.softmax(-1)

    return lambda text: both(text)[0], lambda text: both(text)[1]


def distances(rule: LossyRule) -> list[float]:
    """The distance after 1 to `LENGTH` tokens, on average over eight pairs."""
    distances_by_pair = []
    for seed in range(8):
        draft, target = models(seed)
        exact = sequences(draft, target, Nothing(), LENGTH, 1)
        lossy = sequences(draft, target, rule, LENGTH, DRAFTED)
        distances_by_pair.append(
            [distance(lossy, exact, length) for length in range(1, LENGTH + 1)]
        )
    return [fmean(column) for column in zip(*distances_by_pair, strict=True)]


def test_a_rule_that_accepts_nothing_leaves_the_distribution_of_sequences_as_it_is() -> None:
    draft, target = models(0)
    probabilities = sequences(draft, target, Nothing(), LENGTH, DRAFTED)
    assert sum(probabilities.values()) == pytest.approx(1)
    for tokens, share in probabilities.items():
        own = 1.0
        for position, token in enumerate(tokens):
            own *= float(target(tokens[:position])[token])
        assert share == pytest.approx(own)


RULES: list[LossyRule] = [TypicalAcceptance(), LooseAcceptance(window=1)]


@pytest.mark.parametrize("rule", nightly_except(RULES[:1], RULES))
def test_the_distance_grows_with_the_number_of_tokens_as_the_docs_state(rule: LossyRule) -> None:
    distances_by_length = distances(rule)
    assert all(before < after for before, after in pairwise(distances_by_length))
    row = (
        f"| {rule.display_name} | "
        + " | ".join(f"{share:.3f}" for share in distances_by_length)
        + " |"
    )
    assert row in (Path(__file__).parents[2] / "docs" / "methods.md").read_text(), row


@pytest.mark.parametrize("rule", nightly_except(RULES[1:], RULES))
def test_decoding_draws_sequences_as_often_as_enumeration_says(rule: LossyRule) -> None:
    """Real models of four tokens, two drafted per round, three tokens of 3000 requests."""
    model, sampler = tiny_llama(0, vocab_size=4), Sampler(temperature=0.5)
    noisy = disturbed(model, 0.1)

    def distribution(of: Any) -> Distribution:
        @cache
        def after(text: Prefix) -> Tensor:
            with torch.inference_mode():
                logits = of(torch.tensor([[1, 2, *text]])).logits[0, -1:]
            return sampler.probabilities(logits)[0].double()

        return after

    # The first round has a prompt to draft from as any other has, so that rounds are those of the enumeration.
    expected = sequences(distribution(noisy), distribution(model), rule, 3, 2)
    exact = sequences(distribution(noisy), distribution(model), Nothing(), 3, 1)
    runners = make_runner(model, 50, 32), make_runner(noisy, 50, 32)
    setup = DecodingSetup(lossy=rule, batch_size=50, sampler=sampler)
    engine = local_loop(parse_method("fixed-k:k=2"), *runners, setup=setup)
    for request in make_requests([[1, 2]] * 3000, 3):
        engine.submit(request)
    counts: Counter[Prefix] = Counter()
    while not engine.idle:
        counts.update(tuple(record.output_ids) for record in engine.step())
    drawn = {tokens: count / 3000 for tokens, count in counts.items()}
    # 64 outcomes: the expected distance of 3000 draws is at most sqrt(64 / (2 pi 3000)) = .058.
    assert distance(drawn, expected, 3) < 0.07
    assert distance(expected, exact, 3) > 0.12, "or the test could not tell the rule from none"
    assert distance(drawn, exact, 3) > 0.07


def run(method: Method, rule: LossyRule | None) -> tuple[dict[str, list[int]], int]:
    """Decode greedily with a draft model that resembles the target, and count the rounds."""
    model = tiny_llama(0)
    runners = make_runner(model, 3, 96), make_runner(disturbed(model, 0.05), 3, 96)
    engine = local_loop(method, *runners, setup=DecodingSetup(lossy=rule, batch_size=2))
    for request in make_requests([[1, 2], [3], [4, 5, 6]], 40):
        engine.submit(request)
    records = {}
    while not engine.idle:
        records |= {record.request_id: record for record in engine.step()}
    return outputs(records), sum(len(record.rounds) for record in records.values())


@pytest.mark.parametrize(
    ("spec", "rule"),
    list(
        product(
            ["fixed-k:k=6", "opt-tree:nodes=6,max_depth=3,gain=0.1"], ["typical", "fly:window=1"]
        )
    ),
)
def test_a_lossy_run_takes_fewer_rounds_and_changes_outputs(spec: str, rule: str) -> None:
    plain, rounds = run(parse_method(spec), None)
    lossy, fewer = run(parse_method(spec), parse_lossy(rule))
    assert fewer < rounds
    assert lossy != plain


def test_plain_decoding_is_the_same_under_a_lossy_rule() -> None:
    assert run(AUTOREGRESSIVE, parse_lossy("typical")) == run(AUTOREGRESSIVE, None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("exact", "--lossy: unknown rule 'exact'; known: typical, fly"),
        ("typical:epsilon=2", "typical: epsilon must lie in 0..1, not 2"),
        ("fly:window=0", "fly: window must be at least 1, not 0"),
        ("fly:width=3", "--lossy fly: unknown option 'width'"),
    ],
)
def test_a_bad_rule_is_refused_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(SkitError, match=words):
        parse_lossy(spec)


def test_a_rule_is_recorded_with_all_its_options() -> None:
    assert parse_lossy("typical:delta=0.2").spec == "typical:epsilon=0.09,delta=0.2"
    assert parse_lossy(parse_lossy("fly").spec) == parse_lossy("fly")
