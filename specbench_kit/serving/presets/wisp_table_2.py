"""WISP, Table 2: how many devices one A100 can serve."""

from specbench_kit.papers.wisp import CAPACITY
from specbench_kit.serving.presets.base import Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, FIXED, KV_TOKENS, LENGTHS, PLAIN, SOURCE, STOPPING

CLASSES = ("1", "2", "3", "4")

TABLE_2 = presets.register("wisp-table-2")(
    Preset(
        command="capacity",
        summary="devices that one A100 serves with Qwen3-32B, by class",
        source=f"{SOURCE}, Table 2",
        options={
            "system": ("wisp", "centralized", "sled"),
            "acceptance": (STOPPING, PLAIN, FIXED),
            "slo": CLASSES,
            "kv_tokens": KV_TOKENS,
            "epsilon": 0.05,
            **LENGTHS,
        },
        assumed=ASSUMED,
        published=[
            Published(series, "capacity", float(devices), {"slo": slo})
            for series, row in CAPACITY.items()
            for slo, devices in zip(CLASSES, row, strict=True)
        ],
        against="wisp",
    )
)
