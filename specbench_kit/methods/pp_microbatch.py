"""Plain decoding in a pipeline, the batch in as many groups as there are stages: what serving engines do."""

from dataclasses import dataclass

from specbench_kit.methods.base import methods
from specbench_kit.methods.pipeline_ar import PipelineAR


@methods.register("pp-microbatch")
@dataclass(frozen=True)
class PPMicrobatch(PipelineAR):
    """No draft: a group in every stage, whose requests are one batch there."""

    @property
    def groups(self) -> float:
        return self.stages
