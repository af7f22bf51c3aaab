"""WISP, Figure 8: time in the queue against time in verification, and what violations are put down to."""

from specbench_kit.serving.presets.base import Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, FIXED, KV_TOKENS, LENGTHS, SOURCE

DEVICES = (40, 60, 80, 100, 120)

FIGURE_8 = presets.register("wisp-figure-8")(
    Preset(
        command="simulate",
        summary="queue time against verification time, and what missed deadlines are put down to",
        source=f"{SOURCE}, Figure 8",
        options={
            "system": ("wisp-cache",),
            "label": ("fcfs",),
            "acceptance": (FIXED,),
            "devices": DEVICES,
            "slo": ("1:0.25,2:0.25,3:0.25,4:0.25",),
            "kv_tokens": KV_TOKENS,
            **LENGTHS,
        },
        assumed=tuple(one for one in ASSUMED if one.name not in ("epsilon", "guard time")),
        published=[Published("fcfs", "figures.violations.queue_dominant", None, {"devices": DEVICES[-1]})],
        reading="The figure's numbers are not at hand.",
    )
)
