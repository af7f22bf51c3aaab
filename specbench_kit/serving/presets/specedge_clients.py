"""SpecEdge against the number of clients: throughput, time between tokens, and tokens per dollar."""

from specbench_kit.serving.presets.base import Assumed, Preset, Published, presets
from specbench_kit.serving.presets.specedge_inputs import ASSUMED, COMMON, SOURCE

CLIENTS = (1, 2, 4, 8, 16)

CLIENTS_SERVED = presets.register("specedge-clients")(
    Preset(
        command="simulate",
        summary="throughput, time between tokens and tokens per dollar against the number of clients",
        source=SOURCE,
        options={
            **COMMON,
            "scheduler": ("static:size=8,timeout_s=0,groups=2", "fcfs"),
            "devices": CLIENTS,
            "max_batch": 8,
        },
        assumed=(
            Assumed(
                "time of a batch",
                "94.2 ms whatever its size",
                "Larger batches take longer on a real server: the gains of both sides from batching are upper bounds.",
            ),
            *ASSUMED,
        ),
        published=[
            Published(series, metric, None, {"devices": CLIENTS[-1]})
            for metric in ("figures.overall.throughput", "figures.overall.tpot_s.mean", "figures.cost.tokens_per_price")
            for series in ("specedge", "server only")
        ],
        reading="Stands where the paper has Figures 9 to 12, of which neither curves nor numbers are at hand.",
    )
)
