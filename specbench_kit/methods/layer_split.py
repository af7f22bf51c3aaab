"""The target's layers split between edge and server: autoregressive decoding that crosses the link
for every token.
"""

from dataclasses import dataclass

from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Environment, Method, methods


@methods.register("layer-split")
@dataclass(frozen=True)
class LayerSplit(Autoregressive):
    """Decode one token per round trip, with the first layers on the edge and the others on the
    server, without a draft.

    All layers together take as long as on the server alone, and the hidden states cross the link as
    fast as tokens.
    """

    source = "baseline of SpecEdge, Park et al. 2025"
    group = "bounds"
    needs = "a deployment"
    uses_drafter = True
    placement = "edge"

    def prepare(self, environment: Environment) -> Method:
        environment.require_deployment("layer-split")
        return self
