"""A token tree of fixed shape whose tokens are drawn at random."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods, require

if TYPE_CHECKING:
    from torch import Tensor

    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("sampled-tree")
@dataclass(frozen=True)
class SampledTree(Method):
    """Draft a tree of fixed shape whose nodes at depth i draw `branching[i]` children each at random.

    Siblings are drawn without replacement, as Sequoia draws them, and tried one after the other; with
    `replacement=true` they are drawn independently and verified by SpecInfer's multi-step speculative sampling. Greedy
    decoding takes the most likely children instead. Only a local target verifies such trees.
    """

    branching: tuple[int, ...] = (1, 1, 3, 1, 1, 1, 1, 1)
    replacement: bool = False
    source = "Sequoia, Chen et al. 2024, arXiv 2402.12374; SpecInfer, Miao et al. 2024"
    reported_result = "its own trees: up to 4 times autoregressive decoding (Llama2-7B on an A100)"
    group = "tree"
    verification = "without-replacement"
    required_capability = Capability.TREES

    def __post_init__(self) -> None:
        shape = "-".join(map(str, self.branching))
        allowed = all(width >= 1 for width in self.branching)
        require(allowed, f"sampled-tree: branching must be of 1 and more, not {shape}")

    @property
    def submits_trees(self) -> bool:
        return max(self.branching, default=1) > 1

    def prepare(self, environment: Environment) -> Method:
        environment.require_local_sampling(self.display_name)
        return self

    def policy(self) -> Policy:
        return _SampledTreePolicy(self.branching, self.replacement)


@dataclass
class _SampledTreePolicy(Policy):
    branching: tuple[int, ...]
    replacement: bool

    def draft(self, drafter: "Drafter") -> None:
        for draft in drafter.drafts:
            draft.tree.verification = "with-replacement" if self.replacement else "without-replacement"
        frontier = [(draft, [0]) for draft in drafter.drafts]
        for width in self.branching:
            frontier = [(draft, nodes) for draft, nodes in frontier if drafter.room(draft) >= width * len(nodes)]
            if not frontier:
                return
            frontier = self._level(drafter, frontier, width)

    def _level(
        self, drafter: "Drafter", frontier: "list[tuple[Draft, list[int]]]", width: int
    ) -> "list[tuple[Draft, list[int]]]":
        """Add up to `width` children to every node, and return them by draft."""
        forward = drafter.expand(frontier)
        drawn = forward if forward.greedy else forward.as_drawn()
        row = 0
        level = []
        for draft, nodes in frontier:
            children = []
            for node in nodes:
                probabilities = drawn.probabilities[row]
                if forward.greedy:
                    tokens = probabilities.topk(min(width, len(probabilities))).indices.tolist()
                else:
                    number = partial(draft.session.random.uniform, "draft")
                    tokens = draw_children(probabilities, width, number, replacement=self.replacement)
                children += [draft.tree.add(token, node, drawn, row) for token in tokens]
                row += 1
            level.append((draft, children))
        return level


def draw_children(probabilities: "Tensor", width: int, number: Callable[[], float], *, replacement: bool) -> list[int]:
    """Return up to `width` tokens drawn from a distribution [vocabulary]; `number` gives random numbers in [0, 1).

    Without `replacement` they are distinct, and there are no more than tokens with a positive probability.
    """
    from specbench_kit.decoding.sampling import draw

    remaining = probabilities.clone()
    tokens: list[int] = []
    while len(tokens) < width and remaining.any():
        tokens += draw(remaining[None], [number()])
        if not replacement:
            remaining[tokens[-1]] = 0
    return tokens
