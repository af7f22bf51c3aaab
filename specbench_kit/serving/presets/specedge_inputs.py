"""What the presets after SpecEdge have in common."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.serving.presets.base import Assumed

SOURCE = "SpecEdge (Park et al. 2025)"
TREE = "positions:rates=0.85-0.8-0.75-0.7-0.65-0.6-0.55"
CHAIN = "positions:rates=0.8-0.75-0.7-0.65-0.6-0.55-0.5-0.45"
COMMON: Mapping[str, Any] = {
    "system": ("specedge", "adaspec"),
    "label": ("specedge", "server only"),
    "deployment": ("specedge",),
    "acceptance": (TREE, CHAIN),
    "slo": ("1/s",),
    "duration_s": 600.0,
    "prompt_tokens": 100,
    "output_tokens": 128,
}

ASSUMED = (
    Assumed(
        "acceptance",
        "0.85 to 0.55 by depth of the tree, 0.8 to 0.45 along the server's own chain",
        "Both are made up: higher acceptance raises the tokens per dollar of its side in proportion.",
    ),
    Assumed(
        "proactive drafting",
        "none: every tree is drawn after the answer",
        "What is drafted ahead and kept shortens rounds; it raises SpecEdge where the server has time left.",
    ),
    Assumed("lengths", "100 + 128 tokens", "No effect: the paper's times do not depend on the context."),
    Assumed(
        "server only",
        "the same pair on the server, one after the other: 94.2 ms per verification, 11 ms per draft forward",
        "A faster drafter on the server lowers what the edge brings.",
    ),
    Assumed(
        "edge cost",
        "$0.35/h for each edge device, rented the whole time as in the paper",
        "Paid only while it drafts, as the other figure counts it, SpecEdge comes out cheaper.",
    ),
)
