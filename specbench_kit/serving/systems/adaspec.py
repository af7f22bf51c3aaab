"""Target and draft model share the server."""

from specbench_kit.serving.systems.base import ServingSystem, systems

ADASPEC = systems.register("adaspec")(
    ServingSystem(
        "target and draft model share the server; drafts as long as they pay",
        method="adaspec",
        scheduler="prefill-first",
        drafting="server",
        source="AdaSpec, 2025",
    )
)
