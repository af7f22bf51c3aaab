"""Lossy verification: rules that accept tokens which the target would not have written, a class of
their own.

Every other rule of the kit keeps the target's greedy output, or its distribution. These do not; a
run names its rule, and never stands in one table with runs of another.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.specs import from_options, init_fields

if TYPE_CHECKING:  # the options of a command need no torch
    from torch import Tensor

    from specbench_kit.decoding.sampling import UniformNumbers
    from specbench_kit.decoding.tree import TokenTree


@dataclass(frozen=True)
class LossyRule(ABC):
    """A rule of lossy verification; the fields of a subclass are its options."""

    display_name: ClassVar[str]

    @property
    def spec(self) -> str:
        """Return the text that `parse_lossy` reads as this rule, with all options."""
        options = ",".join(
            f"{option.name}={getattr(self, option.name)}" for option in init_fields(type(self))
        )
        return f"{self.display_name}:{options}"

    @abstractmethod
    def accepted(self, tokens: Sequence[int], target: "Tensor") -> int:
        """Return how many tokens of a chain are accepted.

        Row i of `target` [1 + tokens, vocabulary] is the target's distribution of token i.
        """


@dataclass(frozen=True)
class TypicalAcceptance(LossyRule):
    """Accept a token whose probability exceeds min(`epsilon`, `delta` exp(-entropy)) of the
    target's distribution.

    Cai et al. 2024 (Medusa, arXiv 2401.10774), section 2.3.1, with the defaults of its code. Greedy
    decoding takes the probabilities at temperature 1, where Medusa would accept nothing but the
    most likely token.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    display_name = "typical"

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            require(0 <= value <= 1, f"typical: {name} must lie in 0..1, not {value}")

    def accepted(self, tokens: Sequence[int], target: "Tensor") -> int:
        for place, token in enumerate(tokens):
            threshold = min(self.epsilon, self.delta * exp(-_entropy(target[place])))
            if float(target[place, token]) <= threshold:
                return place
        return len(tokens)


@dataclass(frozen=True)
class LooseAcceptance(LossyRule):
    """Accept a token other than the target's where the target is undecided and agrees with what
    follows.

    FLy (Li et al., training-free loosely speculative decoding, arXiv 2511.22972), as vLLM has it
    for greedy decoding: a mismatch is kept if the terms of the target's `top` most likely tokens
    make an entropy of at least `entropy` nats, and if each of the next `window` drafted tokens is
    the target's most likely one after the draft. A draft that ends within the window loses the
    mismatch and what follows it. The authors' code counts the mismatch into its `win_len`, so that
    it looks at one token less, but asks for as many tokens behind the mismatch. Sampled outputs are
    verified by most likely tokens too, where the authors compare with two drawn tokens and vLLM
    with what it would accept itself.
    """

    entropy: float = 0.3
    window: int = 6
    top: int = 3
    display_name = "fly"

    def __post_init__(self) -> None:
        require(self.entropy >= 0, f"fly: entropy is in nats and at least 0, not {self.entropy}")
        require(self.window >= 1, f"fly: window must be at least 1, not {self.window}")
        require(self.top >= 1, f"fly: top must be at least 1, not {self.top}")

    def accepted(self, tokens: Sequence[int], target: "Tensor") -> int:
        best: list[int] = target.argmax(-1).tolist()
        wrong = [place for place, token in enumerate(tokens) if token != best[place]]
        for number, place in enumerate(wrong):
            following = wrong[number + 1] if number + 1 < len(wrong) else len(tokens)
            most_likely = target[place].topk(min(self.top, target.shape[-1])).values
            if following - place - 1 < self.window or _entropy(most_likely) < self.entropy:
                return place
        return len(tokens)


def _entropy(probabilities: "Tensor") -> float:
    """Return the entropy of a distribution in nats, or what some of its tokens add to it."""
    return float(-probabilities.xlogy(probabilities).sum())


LOSSY_RULES: dict[str, type[LossyRule]] = {
    rule.display_name: rule for rule in (TypicalAcceptance, LooseAcceptance)
}


def parse_lossy(spec: str) -> LossyRule:
    """Return the rule that `NAME:key=value,key=value` describes; SkitError for an unknown one."""
    name, _, options = spec.partition(":")
    if name not in LOSSY_RULES:
        raise SkitError(f"--lossy: unknown rule '{name}'; known: {', '.join(LOSSY_RULES)}")
    return from_options(f"--lossy {name}", LOSSY_RULES[name], options)


def lossy_verdict(
    rule: LossyRule,
    tree: "TokenTree",
    nodes: Sequence[int],
    target: "Tensor",
    random: "UniformNumbers | None",
) -> tuple[list[int], int]:
    """Return the longest accepted path among the nodes, the first of equally long ones, and the
    bonus token.

    `target` is [1 + nodes, vocabulary]. The bonus token is drawn from the target's distribution behind the path, or is
    the most likely token if `random` is None.
    """
    from specbench_kit.decoding.sampling import draw

    column = {0: 0} | {node: index for index, node in enumerate(nodes, 1)}
    inner = {tree.parents[node] for node in nodes}
    path: list[int] = []
    for leaf in (node for node in nodes if node not in inner):
        whole = tree.path(leaf)
        rows = target[[column[node] for node in (0, *whole)]]
        accepted = rule.accepted([tree.tokens[node] for node in whole], rows)
        path = whole[:accepted] if accepted > len(path) else path
    last = target[column[path[-1]] if path else 0]
    bonus = (
        int(last.argmax()) if random is None else draw(last[None], [random.uniform("target")])[0]
    )
    return path, bonus
