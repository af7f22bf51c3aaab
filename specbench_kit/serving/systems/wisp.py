"""WISP, and what each of its parts brings: stopping before rejections, Algorithm 1, and the prefix cache."""

from specbench_kit.serving.systems.base import ServingSystem, systems

SOURCE = "WISP, Li et al. 2025"

WISP = systems.register("wisp")(
    ServingSystem(
        "wisp drafting on the edge, prefix cache, Algorithm 1 by promise",
        method="wisp",
        scheduler="wisp-promise",
        source=SOURCE,
    )
)
DRAFTING = systems.register("wisp-drafting")(
    ServingSystem("only wisp's drafting", method="wisp", scheduler="fcfs", prefix_cache=False, source=SOURCE)
)
SCHEDULER = systems.register("wisp-scheduler")(
    ServingSystem(
        "only Algorithm 1 by promise", method="fixed-k", scheduler="wisp-promise", prefix_cache=False, source=SOURCE
    )
)
CACHE = systems.register("wisp-cache")(
    ServingSystem("only the prefix cache", method="fixed-k", scheduler="fcfs", source=SOURCE)
)
