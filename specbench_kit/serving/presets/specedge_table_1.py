"""SpecEdge, Table 1: tokens per dollar with and without edge devices."""

from specbench_kit.papers.specedge import A100_40_PER_HOUR, COST_GAIN, THROUGHPUT_GAIN, TOKENS_PER_SECOND
from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.specedge_inputs import ASSUMED, COMMON, SOURCE

ALONE = TOKENS_PER_SECOND * 3600 / A100_40_PER_HOUR
BY_ABSTRACT = "by the abstract's gain, an average over models and tasks"

TABLE_1 = presets.register("specedge-table-1")(
    Preset(
        command="simulate",
        summary="tokens per dollar of a server with edge devices and of one that drafts by itself",
        source=f"{SOURCE}, Table 1",
        options={
            **COMMON,
            "scheduler": ("static:size=1,timeout_s=0,groups=2", "fcfs"),
            "devices": (2,),
            "max_batch": 1,
        },
        assumed=(
            Assumed("clients", "two, one for each group, in batches of one", "Larger batches raise both sides."),
            *ASSUMED,
        ),
        published=[
            Published("server only", "figures.cost.tokens_per_price", ALONE),
            Published("specedge", "figures.cost.tokens_per_price", COST_GAIN * ALONE, note=BY_ABSTRACT),
            Published("server only", "figures.overall.throughput", TOKENS_PER_SECOND),
            Published("specedge", "figures.overall.throughput", THROUGHPUT_GAIN * TOKENS_PER_SECOND, note=BY_ABSTRACT),
        ],
        against="specedge",
        reading="Which of the paper's setups 31.78 tokens/s belongs to is not at hand.",
    )
)
