"""What the target answers where its answers are recorded. Imports nothing heavy."""

from dataclasses import dataclass

from specbench_kit.core.common_options import require_requests
from specbench_kit.core.temperature import require_temperature

RECORDED_TOGETHER = 8
"""Batch size with which the target answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSettings:
    """The models and prompts of a recording, validated on construction; an invalid value raises
    SkitError.
    """

    target: str = "auto"
    draft: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    executor: str = "auto"
    device_map: str = ""
    max_memory: str = ""
    max_new_tokens: int = 128
    batch_size: int = RECORDED_TOGETHER
    temperature: float = 0.0
    seed: int = 0
    limit: int | None = None
    minutes: float | None = None
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_requests(self.limit, self.minutes, self.max_new_tokens, self.batch_size)
        require_temperature(self.temperature)
