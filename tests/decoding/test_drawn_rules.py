"""The rules for tokens drawn at random, by enumeration of every draw and every decision on a tiny vocabulary."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from torch import Tensor

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding import rules
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.rules import Rule, block, residual, rule_for, siblings
from specbench_kit.decoding.sampling import RequestRandom, Sampler, draw_several
from specbench_kit.decoding.tree import TokenTree, Verification
from specbench_kit.methods.sparse_quantised import quantised
from specbench_kit.models.executors.base import Forward

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Tensor]


class _Undecided(Exception):
    """Asks for a decision that the script does not make yet: the chances of its outcomes."""

    def __init__(self, chances: Sequence[float]) -> None:
        self.chances = chances


@dataclass
class ChoiceScript:
    """Decisions of a rule in their order, in place of random numbers; it raises `_Undecided` at the first open one."""

    choices: Prefix
    weight: float = 1.0
    used: int = 0

    def decide(self, chances: Sequence[float]) -> int:
        if self.used == len(self.choices):
            raise _Undecided(chances)
        choice = self.choices[self.used]
        self.used += 1
        self.weight *= chances[choice] / sum(chances)
        return choice

    def uniform(self, purpose: str) -> "Number":
        return Number(self)

    def draw(self, rows: Tensor, numbers: Sequence["Number"]) -> list[int]:
        return [self.decide(rows[0].tolist())]


@dataclass
class Number:
    """A number in [0, 1) of which nothing is known but on which side of some bounds it lies."""

    script: ChoiceScript
    scaled: float = field(default=0.0)

    def __lt__(self, chance: float) -> bool:
        return self.script.decide([chance, 1 - chance]) == 0

    def __sub__(self, below: float) -> "Number":
        return self

    def __truediv__(self, share: float) -> "Number":
        return self

    def __mul__(self, q: float) -> "Scaled":
        return Scaled(self.script, q)


@dataclass
class Scaled:
    """A number times q, as `residual` compares it with p."""

    script: ChoiceScript
    q: float

    def __gt__(self, p: float) -> bool:
        chance = min(1.0, p / self.q)
        return self.script.decide([chance, 1 - chance]) == 1


def outcomes(
    rule: Rule, tree: TokenTree, target: Tensor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[float, Prefix]]:
    """Yield every outcome of a rule with its probability: the tokens of the path and the bonus token."""
    pending: list[Prefix] = [()]
    while pending:
        script = ChoiceScript(pending.pop())
        monkeypatch.setattr(rules, "draw", script.draw)
        try:
            path, bonus = rule(tree, list(range(1, len(tree))), target, script)  # type: ignore[arg-type]
        except _Undecided as open_decision:
            chances = open_decision.chances
            pending += [
                (*script.choices, choice) for choice, chance in enumerate(chances) if chance > 0
            ]
        else:
            yield script.weight, (*(tree.tokens[node] for node in path), bonus)


def table(seed: int, vocabulary: int = 3) -> Model:
    """A model whose distribution depends on the last two tokens."""
    random = torch.Generator().manual_seed(seed)
    rows = (
        torch.rand(
            vocabulary + 1, vocabulary + 1, vocabulary, generator=random, dtype=torch.float64
        )
        ** 2
    )
    rows /= rows.sum(-1, keepdim=True)
    return lambda prefix: rows[(prefix[-1:] or (-1,))[0], (prefix[-2:-1] or (-1,))[0]]


def source(probabilities: Tensor) -> DraftForward:
    return DraftForward(
        Forward([probabilities.log()[None]]), Sampler(temperature=1.0), sampled=True
    )


def tokens_to(tree: TokenTree, node: int) -> Prefix:
    return tuple(tree.tokens[above] for above in tree.path(node))


def all_trees(
    draft: Model, branching: Sequence[int], *, replacement: bool
) -> Iterator[tuple[float, TokenTree]]:
    """Yield every tree that may be drawn, with its probability, level by level."""

    def children(probabilities: Tensor, width: int) -> Iterator[tuple[float, Prefix]]:
        for tokens in product(range(len(probabilities)), repeat=width):
            weight, remaining = 1.0, probabilities.clone()
            for token in tokens:
                weight *= float(remaining[token] / remaining.sum())
                if not replacement:
                    remaining[token] = 0
            if weight:
                yield weight, tokens

    def grow(
        weight: float, levels: list[list[tuple[Prefix, Prefix]]]
    ) -> Iterator[tuple[float, TokenTree]]:
        if len(levels) == len(branching):
            yield weight, build(levels)
            return
        ends = (
            [(*above, token) for above, tokens in levels[-1] for token in tokens]
            if levels
            else [()]
        )
        for drawn in product(
            *(tuple(children(draft(end), branching[len(levels)])) for end in ends)
        ):
            chance = 1.0
            for part, _ in drawn:
                chance *= part
            level = [(end, tokens) for end, (_, tokens) in zip(ends, drawn, strict=True)]
            yield from grow(weight * chance, [*levels, level])

    def build(levels: list[list[tuple[Prefix, Prefix]]]) -> TokenTree:
        tree, nodes = TokenTree(0), [0]
        for level in levels:
            below = []
            for node, (end, tokens) in zip(nodes, level, strict=True):
                below += [tree.add(token, node, source(draft(end)), 0) for token in tokens]
            nodes = below
        return tree

    yield from grow(1.0, [])


def output_of(
    rule: Rule,
    draft: Model,
    target: Model,
    branching: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    replacement: bool = True,
) -> tuple[dict[Prefix, float], float]:
    """Return the exact distribution of the output, as long as the deepest draft and its bonus, and the mean length."""
    length, mean = len(branching) + 1, 0.0
    output: defaultdict[Prefix, float] = defaultdict(float)

    def complete(weight: float, tokens: Prefix) -> None:
        if len(tokens) == length:
            output[tokens] += weight
            return
        for token, chance in enumerate(target(tokens).tolist()):
            complete(weight * chance, (*tokens, token))

    for weight, tree in all_trees(draft, branching, replacement=replacement):
        rows = torch.stack([target(tokens_to(tree, node)) for node in range(len(tree))])
        for chance, tokens in outcomes(rule, tree, rows, monkeypatch):
            mean += weight * chance * (len(tokens) - 1)
            complete(weight * chance, tokens)
    return dict(output), mean


def expected_output(target: Model, length: int, vocabulary: int = 3) -> dict[Prefix, float]:
    expected = {}
    for tokens in product(range(vocabulary), repeat=length):
        chance = 1.0
        for index, token in enumerate(tokens):
            chance *= float(target(tokens[:index])[token])
        expected[tokens] = chance
    return expected


def with_replacement(*arguments: object) -> tuple[list[int], int]:
    return siblings(*arguments, replacement=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("rule", "branching", "replacement"),
    [
        (residual, (1, 1, 1), True),
        (block, (1, 1, 1), True),
        (siblings, (2, 2), False),
        (siblings, (3, 1), False),
        (with_replacement, (2, 2), True),
        (with_replacement, (3, 1), True),
    ],
)
def test_output_is_the_targets_exactly(
    rule: Rule,
    branching: Sequence[int],
    replacement: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft, target = table(2 * seed), table(2 * seed + 1)
    output, _ = output_of(rule, draft, target, branching, monkeypatch, replacement=replacement)
    assert output == pytest.approx(expected_output(target, len(branching) + 1), abs=1e-6)


@pytest.mark.parametrize("rule", [residual, block])
def test_rounded_distributions_keep_the_output(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = table(0, 4), table(1, 4)
    output, _ = output_of(
        rule, lambda prefix: quantised(model(prefix), 3, 4), target, (1, 1), monkeypatch
    )
    assert output == pytest.approx(expected_output(target, 3, 4), abs=1e-6)


def _even(chances: Sequence[float]) -> Model:
    return lambda _: torch.tensor(chances, dtype=torch.float64)


def test_the_enumeration_sees_the_wrong_rule_for_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two distinct children is drawn from q without the first, which this rule forgets."""
    draft, target = _even((0.8, 0.1, 0.1)), _even((0.2, 0.5, 0.3))
    output, _ = output_of(with_replacement, draft, target, (2,), monkeypatch, replacement=False)
    assert output != pytest.approx(expected_output(target, 2), abs=1e-2)


def test_a_block_accepts_what_its_paper_works_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's example, two tokens with p = 1/3, 2/3 and q = 2/3, 1/3: 11/9 of two tokens against 10/9."""
    draft, target = _even((2 / 3, 1 / 3)), _even((1 / 3, 2 / 3))
    means = [output_of(rule, draft, target, (1, 1), monkeypatch)[1] for rule in (residual, block)]
    assert means == pytest.approx([10 / 9, 11 / 9], abs=1e-6)


def test_a_block_accepts_no_less_than_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        pair = table(2 * seed), table(2 * seed + 1)
        single, together = (
            output_of(rule, *pair, (1, 1, 1), monkeypatch)[1] for rule in (residual, block)
        )
        assert together >= single


def test_siblings_are_accepted_as_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With p = .2, .3, .5 and q = .5, .3, .2 the first child is accepted with .7.

    A rejection, .3, is of token 0 alone, and leaves p = 0, 0, 1. The second child is token 2 with .2 / .5 = .4 without
    replacement, and with .2 otherwise: .82 and .76.
    """
    draft, target = _even((0.5, 0.3, 0.2)), _even((0.2, 0.3, 0.5))
    for rule, replacement, mean in ((siblings, False, 0.82), (with_replacement, True, 0.76)):
        observed = output_of(rule, draft, target, (2,), monkeypatch, replacement=replacement)[1]
        assert observed == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("rule", [block, siblings])
def test_a_round_reads_one_number_per_committed_token(rule: Rule) -> None:
    """The next round reads on from there: a number that decided something may not decide again."""

    class CountedNumbers:
        used = 0

        def uniform(self, purpose: str) -> float:
            self.used += purpose == "accept"
            return random.uniform(purpose)  # type: ignore[arg-type]

    random, draft, target = RequestRandom(0, "a"), table(0), table(1)
    for _, tree in list(all_trees(draft, (1, 1, 1), replacement=True)):
        counting = CountedNumbers()
        rows = torch.stack([target(tokens_to(tree, node)) for node in range(len(tree))])
        path, _ = rule(tree, [1, 2, 3], rows, counting)
        assert counting.used <= len(path) + 1


def test_equal_distributions_up_to_rounding_still_give_a_token() -> None:
    model = _even((0.5, 0.25, 0.25))
    for rule in (block, siblings):
        for trial, (_, tree) in enumerate(all_trees(model, (1, 1), replacement=True)):
            rows = torch.stack([model(()) for _ in range(3)])
            assert rule(tree, [1, 2], rows, RequestRandom(0, str(trial)))[0] == [1, 2]


def test_children_are_drawn_without_replacement_until_none_is_left() -> None:
    probabilities = torch.tensor([[0.5, 0.0, 0.3, 0.2], [0.0, 0.6, 0.0, 0.4]])
    numbers = [[0.9, 0.0, 0.5, 0.5, 0.5], [0.5, 0.9, 0.1, 0.2, 0.3]]
    assert draw_several(probabilities, numbers, replacement=False) == [[3, 0, 2], [1, 3]]
    assert draw_several(probabilities, [[0.1, 0.1], [0.5, 0.7]], replacement=True) == [
        [0, 0],
        [1, 3],
    ]


@pytest.mark.parametrize(
    ("verification", "rule"),
    [("token", residual), ("block", block), ("without-replacement", siblings)],
)
def test_the_tree_says_how_its_drawn_tokens_are_verified(
    verification: Verification, rule: Rule
) -> None:
    _, tree = next(all_trees(table(0), (1, 1), replacement=True))
    tree.verification = verification
    assert rule_for(tree, [1, 2]) is rule


def test_a_drawn_tree_without_a_rule_is_refused() -> None:
    _, tree = next(all_trees(table(0), (2,), replacement=False))
    with pytest.raises(PolicyError, match="can only be verified as a chain"):
        rule_for(tree, [1, 2])


class _Least:
    """Gives the least number that there is."""

    def uniform(self, purpose: str) -> float:
        return 0.0


@pytest.mark.parametrize("rule", [residual, block, siblings])
def test_a_token_without_a_probability_is_never_accepted(rule: Rule) -> None:
    """A grammar that forbids it leaves it none; the draft of a model that knows no grammar may hold it."""
    tree = TokenTree(0)
    tree.add(1, 0, source(torch.tensor([0.5, 0.5, 0.0])), 0)
    target = torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    assert rule(tree, [1], target, _Least()) == ([], 0)
