"""The server generates by itself."""

from specbench_kit.serving.systems.base import ServingSystem, systems

CENTRALIZED = systems.register("centralized")(
    ServingSystem(
        "plain decoding on the server, continuous batching",
        method="autoregressive",
        scheduler="prefill-first",
        drafting="none",
        source="WISP's baseline; vLLM",
    )
)
