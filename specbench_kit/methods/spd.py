"""A chain that fills a pipeline: each step drafts one more token while the stages verify those
before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Capability, Child, LevelPolicy, Method, Pipeline, methods

if TYPE_CHECKING:
    from torch import Tensor


@methods.register("spd")
@dataclass(frozen=True)
class SpeculativePipelineDecoding(Method):
    """Feed the most probable next token in each step to a target of `stages` pipeline stages, whose
    last one verifies the oldest token in flight.

    A wrong token empties the pipeline: where a share p of the drafted tokens is right, a token takes
    1 + (1 - p) (stages - 1) steps. The paper's draft module is trained on the target's hidden states between the
    stages; here the draft model drafts, on a card of its own.
    """

    stages: int = 4
    source = "SPD, arXiv 2605.30852"
    reported_result = "2.27 times autoregressive decoding on four stages and a card for the drafts (Qwen3.5-4B, greedy)"
    group = "overlapping"
    proposal = "top"
    required_capability = Capability.LEVELS

    def __post_init__(self) -> None:
        self.require_at_least(1, "stages")

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.stages, width=1)

    def policy(self) -> LevelPolicy:
        return _ChainPolicy()


class _ChainPolicy(LevelPolicy):
    def next_level(
        self, probabilities: "Tensor", scores: Sequence[float], room: int
    ) -> list[Child]:
        best = probabilities[0].max(dim=-1)
        child = Child(0, int(best.indices), scores[0] + float(best.values.log()))
        return [child][:room]
