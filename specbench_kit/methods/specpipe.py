"""A tree that fills a pipeline: one more level per step, while the stages work on the levels before."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from specbench_kit.methods.base import Capability, Child, LevelPolicy, Method, Pipeline, StepBudget, methods, require

if TYPE_CHECKING:
    from torch import Tensor


@methods.register("specpipe")
@dataclass(frozen=True)
class SpecPipe(Method):
    """Feed a target of `stages` pipeline stages one tree level per step: the likeliest `width` tokens.

    Each node of the last level offers its `children` likeliest tokens; what counts is the probability from the root
    on. The tree is cut back to what follows each token that the last stage yields, and a token that it does not hold
    empties the pipeline. The levels of a batch come to `rows` tokens in a step, shared out `equal`ly or `greedy` by
    probability; with `budget=request` each keeps to its own width alone. New prompts go `mixed` with the levels, as far
    as the rows go, or `first`, in steps of their own of `chunk` tokens.
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
        for name in ("stages", "width", "children", "rows", "chunk"):
            require(getattr(self, name) >= 1, f"specpipe: {name} must be at least 1, not {getattr(self, name)}")
        fits = self.width <= self.rows or self.budget == "request"
        require(fits, f"specpipe: width={self.width} is more than a step's rows={self.rows}: give rows={self.width}")

    @property
    def pipeline(self) -> Pipeline:
        rows = self.rows if self.budget == "step" else None
        return Pipeline(self.stages, self.width, StepBudget(rows, self.share, self.prefill, self.chunk))

    def policy(self) -> LevelPolicy:
        return _SpecPipePolicy(self.width, self.children)


@dataclass
class _SpecPipePolicy(LevelPolicy):
    width: int
    children: int

    def next_level(self, probabilities: "Tensor", scores: Sequence[float], room: int) -> list[Child]:
        best = probabilities.topk(min(self.children, probabilities.shape[-1]))
        totals = best.values.log() + best.values.new_tensor(scores)[:, None]
        chosen = totals.flatten().topk(min(self.width, room, totals.numel()))
        tokens = best.indices.flatten()[chosen.indices].tolist()
        offered = best.indices.shape[-1]
        return [
            Child(place // offered, token, score)
            for place, token, score in zip(chosen.indices.tolist(), tokens, chosen.values.tolist(), strict=True)
            if score > -inf
        ]
