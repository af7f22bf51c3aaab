"""Plain decoding in a pipeline, every request on its own in a stage."""

from dataclasses import dataclass, field
from math import inf

from specbench_kit.methods.base import Capability, LevelPolicy, Method, Pipeline, StepBudget, methods, require


@methods.register("pipeline-ar")
@dataclass(frozen=True)
class PipelineAR(Method):
    """A token takes as many steps as there are `stages`; the requests of a batch follow each other through them.

    New prompts go first, in steps of their own of `chunk` tokens.
    """

    drafter: str = field(default="none", init=False)
    stages: int = 8
    chunk: int = 512
    source = "baseline of SpecPipe, Yin et al. 2025"
    group = "bounds"
    required_capability = Capability.TOKENS
    uses_drafter = False

    def __post_init__(self) -> None:
        for name in ("stages", "chunk"):
            require(
                getattr(self, name) >= 1, f"{self.display_name}: {name} must be at least 1, not {getattr(self, name)}"
            )

    @property
    def groups(self) -> float:
        """Batches that the requests make at most, which follow each other."""
        return inf

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline(self.stages, 1, StepBudget(chunk=self.chunk, groups=self.groups))

    def policy(self) -> LevelPolicy:
        return LevelPolicy()
