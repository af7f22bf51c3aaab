"""The server generates by itself."""

from specbench_kit.serving.systems.base import System, systems

CENTRALIZED = systems.register("centralized")(
    System(
        "plain decoding on the server, continuous batching",
        method="autoregressive",
        scheduler="prefill-first",
        drafting="none",
        source="WISP's baseline; vLLM",
    )
)
