"""A token tree of fixed shape whose tokens are drawn at random."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter


@methods.register("sampled-tree")
@dataclass(frozen=True)
class SampledTree(Method):
    """Draft a tree of fixed shape whose nodes at depth i draw `branching[i]` children each at
    random.

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
            draft.tree.verification = (
                "with-replacement" if self.replacement else "without-replacement"
            )
        frontier = [(draft, [0]) for draft in drafter.drafts]
        for width in self.branching:
            frontier = [
                (draft, nodes)
                for draft, nodes in frontier
                if drafter.room(draft) >= width * len(nodes)
            ]
            if not frontier:
                return
            frontier = self._level(drafter, frontier, width)

    def _level(
        self, drafter: "Drafter", frontier: "list[tuple[Draft, list[int]]]", width: int
    ) -> "list[tuple[Draft, list[int]]]":
        """Add up to `width` children to every node, and return them by draft."""
        forward = drafter.expand(frontier)
        drawn = forward if forward.greedy else forward.as_drawn()
        if forward.greedy:
            tokens = forward.top_tokens(width)
        else:
            from specbench_kit.decoding.sampling import draw_several

            numbers = []
            for draft, nodes in frontier:
                numbers += [
                    [draft.session.random.uniform("draft") for _ in range(width)] for _ in nodes
                ]
            tokens = draw_several(drawn.probabilities, numbers, replacement=self.replacement)
        children = iter(enumerate(tokens))
        level = []
        for draft, nodes in frontier:
            below = []
            for node, (row, found) in zip(nodes, children, strict=False):
                below += [draft.tree.add(token, node, drawn, row) for token in found]
            level.append((draft, below))
        return level
