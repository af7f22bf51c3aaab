"""WISP with and without its drafting predictor, on few devices."""

from specbench_kit.papers.wisp import PREDICTOR_GAIN
from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.wisp_inputs import ALPHA, ASSUMED, KV_TOKENS, LENGTHS, SOURCE, STOPPING

PREDICTOR = presets.register("wisp-predictor")(
    Preset(
        command="simulate",
        summary="throughput with the drafting predictor over throughput without it",
        source=f"{SOURCE}, predictor on against off",
        options={
            "system": ("wisp",),
            "method": ("fixed-k:k=8", "wisp"),
            "label": ("off", "on"),
            "acceptance": (f"iid:alpha={ALPHA:.4f},length=8", STOPPING),
            "devices": tuple(PREDICTOR_GAIN),
            "kv_tokens": KV_TOKENS,
            **LENGTHS,
        },
        assumed=(
            Assumed(
                "draft without the predictor",
                "always 8 tokens",
                "Shorter fixed drafts waste less, so that the predictor gains less.",
            ),
            *(one for one in ASSUMED if one.name not in ("epsilon", "longest draft")),
        ),
        published=[
            Published("on", "throughput_ratio", 1 + gain, {"devices": devices})
            for devices, gain in PREDICTOR_GAIN.items()
        ],
    )
)
