"""Drafts of one length, verified in static batches."""

from specbench_kit.serving.systems.base import ServingSystem, systems

SLED = systems.register("sled")(
    ServingSystem(
        "drafts of one length on the edge, full batches or a time-out, no prefix cache",
        method="fixed-k",
        scheduler="static",
        prefix_cache=False,
        source="SLED",
    )
)
