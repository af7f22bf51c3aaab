"""WISP against first come, first served on the same devices: violations by class."""

from specbench_kit.papers.wisp import VIOLATIONS
from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, KV_TOKENS, LENGTHS, SOURCE, STOPPING

DEVICES = 190
CLASSES = ("1", "2", "3", "4")

VIOLATIONS_BY_CLASS = presets.register("wisp-violations")(
    Preset(
        command="simulate",
        summary="violations by class on an overloaded server, first come, first served against Algorithm 1",
        source=f"{SOURCE}, the table of violations by class",
        options={
            "system": ("wisp",),
            "scheduler": ("wisp-promise", "fcfs"),
            "label": ("wisp", "fcfs"),
            "acceptance": (STOPPING,),
            "devices": (DEVICES,),
            "slo": (",".join(f"{name}:0.25" for name in CLASSES),),
            "kv_tokens": KV_TOKENS,
            **LENGTHS,
        },
        assumed=(
            Assumed(
                "devices",
                f"{DEVICES}, a quarter of them in each class",
                "The paper names neither. With so many, about as many of class 2 fail without Algorithm 1 as there; "
                "with more devices more classes fail under both schedulers, with fewer none.",
            ),
            *(one for one in ASSUMED if one.name != "epsilon"),
        ),
        published=[
            Published(series, f"figures.classes.{name}.violation_rate", rate)
            for series, row in VIOLATIONS.items()
            for name, rate in zip(CLASSES, row, strict=True)
        ],
        against="fcfs",
    )
)
