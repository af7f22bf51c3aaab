"""WISP: tokens per second of a loaded server under each system."""

from specbench_kit.papers.wisp import THROUGHPUT
from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ASSUMED, FIXED, KV_TOKENS, LENGTHS, PLAIN, SOURCE, STOPPING

DEVICES = 100

THROUGHPUTS = presets.register("wisp-throughput")(
    Preset(
        command="simulate",
        summary="tokens per second of a loaded server",
        source=f"{SOURCE}, throughput of three systems",
        options={
            "system": ("wisp", "centralized", "sled"),
            "acceptance": (STOPPING, PLAIN, FIXED),
            "devices": (DEVICES,),
            "slo": ("1:0.25,2:0.25,3:0.25,4:0.25",),
            "kv_tokens": KV_TOKENS,
            **LENGTHS,
        },
        assumed=(
            Assumed(
                "devices",
                f"{DEVICES}, a quarter of them in each class",
                "The paper does not say with how many; with fewer the server idles and the systems come closer.",
            ),
            *(one for one in ASSUMED if one.name != "epsilon"),
        ),
        published=[Published(name, "figures.overall.throughput", rate) for name, rate in THROUGHPUT.items()],
        against="wisp",
    )
)
