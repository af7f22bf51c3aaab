"""SpecEdge's tree with the draft model on the server: no link within a round, and no drafting
ahead.
"""

from dataclasses import dataclass

from specbench_kit.methods.base import Environment, Method, methods, require
from specbench_kit.methods.specedge import SpecEdge


@methods.register("server-tree")
@dataclass(frozen=True)
class ServerTree(SpecEdge):
    """Draft a tree of the `budget` most probable tokens on the server, as fast as the edge's draft
    model would.
    """

    budget: int = 64
    proactive: bool = False
    source = "server-only baseline of SpecEdge, Park et al. 2025"
    reported_result = ""
    group = "tree"
    needs = "a deployment"
    overlaps = False
    placement = "server"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.proactive,
            "server-tree: the server cannot draft while it verifies: leave out proactive",
        )

    def prepare(self, environment: Environment) -> Method:
        environment.require_deployment("server-tree")
        return self
