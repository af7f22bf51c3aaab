"""Autoregressive decoding in a pipeline with micro-batches, as serving engines do it."""

from dataclasses import dataclass

from specbench_kit.methods.base import methods
from specbench_kit.methods.pipeline_ar import PipelineAR


@methods.register("pp-microbatch")
@dataclass(frozen=True)
class PPMicrobatch(PipelineAR):
    """Decode without a draft through `stages` pipeline stages, each of which holds one group of
    requests as a batch.
    """

    @property
    def groups(self) -> float:
        return self.stages
