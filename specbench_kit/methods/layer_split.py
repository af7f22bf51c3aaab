"""The target's layers shared out between edge and server: plain decoding that crosses the link for every token."""

from dataclasses import dataclass

from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Environment, Method, methods


@methods.register("layer-split")
@dataclass(frozen=True)
class LayerSplit(Autoregressive):
    """One token per round trip; the layers take as long, and the states that cross the link no longer, as elsewhere."""

    source = "baseline of SpecEdge, Park et al. 2025"
    group = "bounds"
    needs = "a deployment"
    uses_drafter = True
    placement = "edge"

    def prepare(self, environment: Environment) -> Method:
        environment.require_deployment("layer-split")
        return self
