"""Autoregressive decoding in a pipeline, with one request per stage."""

from dataclasses import dataclass, field
from math import inf

from specbench_kit.methods.base import (
    Capability,
    LevelPolicy,
    Method,
    Pipeline,
    StepBudget,
    methods,
)


@methods.register("pipeline-ar")
@dataclass(frozen=True)
class PipelineAR(Method):
    """Decode without a draft through `stages` pipeline stages, each of which holds one request at a
    time.

    A token takes one step per stage, and the requests of a batch follow each other. New prompts go
    first, in steps of their own of `chunk` tokens.
    """

    drafter: str = field(default="none", init=False)
    stages: int = 8
    chunk: int = 512
    source = "baseline of SpecPipe, Yin et al. 2025"
    group = "bounds"
    required_capability = Capability.TOKENS
    uses_drafter = False

    def __post_init__(self) -> None:
        self.require_at_least(1, "stages", "chunk")

    @property
    def groups(self) -> float:
        """Return the largest number of groups of requests that follow each other through the
        stages.
        """
        return inf

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.stages, 1, StepBudget(chunk=self.chunk, groups=self.groups))

    def policy(self) -> LevelPolicy:
        return LevelPolicy()
