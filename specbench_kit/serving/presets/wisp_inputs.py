"""What the presets after WISP have in common: inputs that the paper gives, and those that it leaves open."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.papers.wisp import DATA_SET
from specbench_kit.papers.wisp import MLP_CONFUSION as MLP
from specbench_kit.serving.presets.base import Assumed

SOURCE = "WISP (Li et al. 2025)"
ALPHA = DATA_SET.acceptance_rate
STOPPING = f"iid:alpha={ALPHA:.4f},length=8,recall={MLP.recall:.4f},specificity={MLP.specificity:.4f}"
"""Drafts of WISP: the data set gives the odds of a right token, the MLP's test tokens those of the predictor."""
FIXED = f"iid:alpha={ALPHA:.4f},length=4"
PLAIN = f"iid:alpha={ALPHA:.4f},length=0"
LENGTHS: Mapping[str, Any] = {"prompt_tokens": 450, "output_tokens": 100}
KV_TOKENS = "150000"

ASSUMED = (
    Assumed(
        "prompt and response",
        "450 + 100 tokens, all alike",
        "Longer contexts cost SLED most, since it recomputes them every round, then centralized, which reads them once "
        "per token; WISP reads them once per round. Shorter ones bring the three closer together.",
    ),
    Assumed(
        "acceptance",
        f"{ALPHA:.3f} of the tokens, independently, from the 17,510 tokens of Table 8",
        "Higher acceptance raises WISP and SLED and leaves centralized as it is.",
    ),
    Assumed("longest draft", "8 for WISP, 4 for SLED", "Longer drafts of SLED waste more of the edge's time."),
    Assumed("epsilon", "0.05", "A larger epsilon raises all capacities, most where violations rise slowly."),
    Assumed(
        "network",
        "20 ms round trip, no jitter, unlimited bandwidth",
        "A slower network takes from the budget of every round: it lowers WISP and SLED, most in the fast classes.",
    ),
    Assumed(
        "draft speed",
        "50 tokens/s, from the paper's text",
        "Faster devices raise WISP and SLED in the fast classes, where drafting takes much of the budget.",
    ),
    Assumed(
        "guard time", "3 s, the kit's default", "A shorter one lets requests wait for longer before they are urgent."
    ),
    Assumed(
        "room for KV",
        "150,000 tokens, about what weights in 8 bits would leave of 80 GB",
        "In bfloat16 the weights leave 24,708 tokens, room for 45 such sessions: the order of the three stays, WISP "
        "serves fewer, and an overloaded server waits for memory, which no order of verification helps.",
    ),
    Assumed("largest batch", "64", "Smaller batches lower all capacities, those of the slow classes first."),
    Assumed(
        "load",
        "every device asks for its next response at once",
        "Time to think between responses raises all capacities alike.",
    ),
    Assumed(
        "latency",
        "Table 12, although it is faster than the GPU can be",
        "With the roofline of the same GPU (--deployment wisp-roofline) all capacities fall.",
    ),
)
