"""Two groups of clients take turns: one drafts while the other is verified."""

from specbench_kit.serving.systems.base import ServingSystem, systems

SPECEDGE = systems.register("specedge")(
    ServingSystem(
        "trees on the edge that go on growing, two groups of clients that take turns",
        method="specedge",
        scheduler="static:groups=2",
        source="SpecEdge, Park et al. 2025",
    )
)
