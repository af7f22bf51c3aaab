"""A tree that fills a pipeline: each step drafts one more level while the stages verify the levels
before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from specbench_kit.methods.base import (
    Capability,
    Child,
    LevelPolicy,
    Method,
    Pipeline,
    StepBudget,
    methods,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor


@methods.register("specpipe")
@dataclass(frozen=True)
class SpecPipe(Method):
    """Feed one tree level per step, of the `width` most probable tokens, to a target of `stages`
    pipeline stages.

    Candidates are the `children` most probable tokens after each node of the last level, ranked by their probability
    from the root. When the last stage yields a token, only the tree below that token is kept; a token that the tree
    does not hold empties the pipeline. The levels of a batch have at most `rows` tokens per step, which requests
    `share` in equal parts or greedily by probability; with `budget=request` only the width limits them. The `prefill`
    of new prompts is mixed with the levels, within the same rows, or goes first, in steps of its own of `chunk` tokens.
    """

    stages: int = 8
    width: int = 64
    children: int = 16
    rows: int = 64
    share: Literal["equal", "greedy"] = "equal"
    budget: Literal["step", "request"] = "step"
    prefill: Literal["first", "mixed"] = "mixed"
    chunk: int = 512
    source = "SpecPipe, Yin et al. 2025"
    reported_result = "4.19 to 5.53 times a pipeline without speculation"
    group = "overlapping"
    proposal = "top"
    required_capability = Capability.LEVELS

    def __post_init__(self) -> None:
        self.require_at_least(1, "stages", "width", "children", "rows", "chunk")
        fits = self.width <= self.rows or self.budget == "request"
        require(
            fits,
            f"specpipe: width={self.width} is more than a step's rows={self.rows}: give rows={self.width}",
        )

    @property
    def pipeline(self) -> Pipeline:
        rows = self.rows if self.budget == "step" else None
        return Pipeline(
            self.stages, self.width, StepBudget(rows, self.share, self.prefill, self.chunk)
        )

    def policy(self) -> LevelPolicy:
        return _SpecPipePolicy(self.width, self.children)


@dataclass
class _SpecPipePolicy(LevelPolicy):
    width: int
    children: int

    def next_level(
        self, probabilities: "Tensor", scores: Sequence[float], room: int
    ) -> list[Child]:
        best = probabilities.topk(min(self.children, probabilities.shape[-1]))
        totals = best.values.log() + best.values.new_tensor(scores)[:, None]
        chosen = totals.flatten().topk(min(self.width, room, totals.numel()))
        tokens = best.indices.flatten()[chosen.indices].tolist()
        offered = best.indices.shape[-1]
        return [
            Child(index // offered, token, score)
            for index, token, score in zip(
                chosen.indices.tolist(), tokens, chosen.values.tolist(), strict=True
            )
            if score > -inf
        ]
