"""WISP, Figure 7: the violation rate against the number of devices, with its knee."""

from specbench_kit.serving.presets.base import Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, KV_TOKENS, LENGTHS, SOURCE, STOPPING

DEVICES = tuple(range(20, 181, 20))

FIGURE_7 = presets.register("wisp-figure-7")(
    Preset(
        command="simulate",
        summary="violation rate against the number of devices",
        source=f"{SOURCE}, Figure 7",
        options={
            "system": ("wisp",),
            "scheduler": ("fcfs", "wisp-promise"),
            "label": ("fcfs", "wisp-promise"),
            "acceptance": (STOPPING,),
            "devices": DEVICES,
            "slo": ("1:0.25,2:0.25,3:0.25,4:0.25",),
            "kv_tokens": KV_TOKENS,
            **LENGTHS,
        },
        assumed=tuple(one for one in ASSUMED if one.name != "epsilon"),
        published=[
            Published(name, "figures.overall.violation_rate", None, {"devices": devices})
            for name in ("fcfs", "wisp-promise")
            for devices in DEVICES
        ],
        reading=(
            "The figure's numbers are not at hand. By class they are flat up to a knee and steep beyond it, WISP's "
            "knee at more devices in each."
        ),
    )
)
