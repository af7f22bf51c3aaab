"""WISP's capacities of Qwen3-14B: how many devices one A100 can serve."""

from specbench_kit.papers.wisp import CAPACITY_14B
from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, FIXED, LENGTHS, PLAIN, SOURCE, STOPPING

CLASSES = ("1", "2", "3", "4")
REPLACED = ("latency", "room for KV")

CAPACITY = presets.register("wisp-capacity-14b")(
    Preset(
        command="capacity",
        summary="devices that one A100 serves with Qwen3-14B, by class",
        source=SOURCE,
        options={
            "system": ("wisp", "centralized", "sled"),
            "deployment": ("wisp-14b-roofline",),
            "acceptance": (STOPPING, PLAIN, FIXED),
            "slo": CLASSES,
            "epsilon": 0.05,
            **LENGTHS,
        },
        assumed=(
            *(one for one in ASSUMED if one.name not in REPLACED),
            Assumed(
                "latency",
                "the roofline of an A100 80 GB, since the paper gives no latencies of Qwen3-14B",
                "A real verifier is slower than the roofline: all capacities would fall.",
            ),
            Assumed(
                "room for KV",
                "what bfloat16 weights leave of 80 GB",
                "Weights in 8 bits leave more: capacities of the slow classes would rise.",
            ),
        ),
        published=[
            Published(series, "capacity", float(devices), {"slo": slo})
            for series, row in CAPACITY_14B.items()
            for slo, devices in zip(CLASSES, row, strict=True)
        ],
        against="wisp",
    )
)
