"""The options of synthetic prompts. Imports no decoder, so that options can be checked at once."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """How many prompts there are, how long they and their answers are, and how they are decoded."""

    requests: int = 8
    prompt_tokens: int = 128
    output_tokens: int = 256
    batch_size: int = 1
    temperature: float = 0.0
    seed: int = 0
