"""SpecEdge, Table 1: tokens per dollar with and without edge devices."""

from specbench_kit.papers.specedge import EDGE_PER_HOUR
from specbench_kit.papers.specedge import TABLE_1 as BY_PAIR
from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.specedge_inputs import ASSUMED, COMMON, SOURCE

FOUND = BY_PAIR["qwen3-32b/1.7b"]
ALONE = FOUND.server_only * 3600 / FOUND.price_per_hour
WITH_EDGE = FOUND.specedge * 3600 / (FOUND.price_per_hour + 2 * EDGE_PER_HOUR)

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
            Published("server only", "figures.cost.tokens_per_rented_price", ALONE),
            Published("specedge", "figures.cost.tokens_per_rented_price", WITH_EDGE, note="two RTX 4090 all the time"),
            Published("server only", "figures.overall.throughput", FOUND.server_only),
            Published("specedge", "figures.overall.throughput", FOUND.specedge),
        ],
        against="specedge",
        reading="Published: Qwen3 32B/1.7B in multi-turn conversation; the mean gain of all rows is 2.22x.",
    )
)
