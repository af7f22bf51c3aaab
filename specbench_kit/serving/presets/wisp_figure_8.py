"""WISP, Figure 8: time in the queue against time in verification, and what violations are put down to."""

from specbench_kit.serving.presets.base import Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, KV_TOKENS, LENGTHS, SOURCE, STOPPING

DEVICES = (40, 60, 80, 100, 120)

FIGURE_8 = presets.register("wisp-figure-8")(
    Preset(
        command="simulate",
        summary="queue time against verification time, and what missed deadlines are put down to",
        source=f"{SOURCE}, Figure 8",
        options={
            "system": ("wisp",),
            "label": ("wisp",),
            "acceptance": (STOPPING,),
            "devices": DEVICES,
            "slo": ("1:0.25,2:0.25,3:0.25,4:0.25",),
            "kv_tokens": KV_TOKENS,
            **LENGTHS,
        },
        assumed=tuple(one for one in ASSUMED if one.name != "epsilon"),
        published=[Published("wisp", "figures.violations.queue_dominant", None, {"devices": DEVICES[-1]})],
        reading="The figure's numbers are not at hand; by the text most violations are dominated by computing.",
    )
)
