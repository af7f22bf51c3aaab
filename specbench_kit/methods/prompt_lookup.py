"""The method `prompt-lookup`: chains of constant length by n-gram matching."""

from dataclasses import dataclass, field
from types import MappingProxyType

from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.methods.base import methods
from specbench_kit.methods.fixed_k import FixedK


@methods.register("prompt-lookup")
@dataclass(frozen=True)
class PromptLookup(FixedK):
    """Draft the `k` tokens that followed the first earlier occurrence of the newest n-gram of prompt and answer.

    The n-gram is the longest of `max` down to `min` tokens that occurred before.
    """

    k: int = 10
    min: int = 1
    max: int = 3
    drafter: str = field(default="prompt-lookup", init=False)
    source = "prompt lookup decoding, Saxena 2023"
    reported_result = "2 to 4 times plain decoding where answers repeat their prompts"
    group = "draft-free"
    grid = MappingProxyType({"k": (2, 4, 10), "min": (1, 2), "max": (3, 4)})

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.drafting  # raises SkitError for a bad range

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.decoding.drafting import prompt_lookup

        return prompt_lookup.PromptLookupDrafting(min=self.min, max=self.max)
