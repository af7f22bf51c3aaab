"""A draft length for every batch size, from a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.methods.base import Capability, Group, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


@methods.register("batch-lengths")
@dataclass(frozen=True)
class BatchLengths(Method):
    """Draft as many tokens as a table has for the number of requests that are decoded together.

    The default, `lengths=4-2-1,sizes=4-8-32`, drafts four tokens for up to 4 requests, two for up
    to 8, one for up to 32, and none beyond, as TensorRT-LLM's `draft_len_schedule` and vLLM's
    `num_speculative_tokens_per_batch_size` do. Over a link, a round without a draft takes a round
    trip for its one token. `skit tune --batch-size N` fills the table with the fastest length of
    every power of two up to N.
    """

    lengths: tuple[int, ...] = (4, 2, 1)
    sizes: tuple[int, ...] = (4, 8, 32)
    required_capability = Capability.TOKENS
    source = "TensorRT-LLM 1.2, vLLM 0.19"
    group: ClassVar[Group] = "static"

    def __post_init__(self) -> None:
        lengths, sizes = ("-".join(map(str, option)) for option in (self.lengths, self.sizes))
        require(
            len(self.lengths) == len(self.sizes) > 0,
            f"batch-lengths: every one of the sizes {sizes} needs a length, and lengths are {lengths}",
        )
        require(min(self.lengths) >= 0, f"batch-lengths: lengths must be at least 0, not {lengths}")
        rising = all(
            before < after for before, after in zip((0, *self.sizes), self.sizes, strict=False)
        )
        require(
            rising, f"batch-lengths: sizes must rise from at least 1, as 4-8-32 does, not {sizes}"
        )

    @property
    def longest_draft(self) -> int:
        return max(self.lengths)

    @property
    def batch_aware(self) -> bool:
        return True

    @classmethod
    def tuning_specs(
        cls, tokens_per_s: Callable[[str, int], float], batch_size: int, longest: int
    ) -> Sequence[str]:
        """Return the table with the fastest length, from 0 to `longest`, of every power of two up
        to the batch size.
        """
        sizes = [1 << power for power in range((batch_size - 1).bit_length() + 1)]
        best = "-".join(str(_fastest_length(tokens_per_s, size, longest)) for size in sizes)
        return [f"batch-lengths:lengths={best},sizes={'-'.join(map(str, sizes))}"]

    def policy(self) -> Policy:
        return _BatchLengthsPolicy(self.lengths, self.sizes)


@dataclass
class _BatchLengthsPolicy(Policy):
    lengths: Sequence[int]
    sizes: Sequence[int]

    def draft(self, drafter: "Drafter") -> None:
        requests = len(drafter.drafts)
        lengths = (
            length
            for length, size in zip(self.lengths, self.sizes, strict=True)
            if requests <= size
        )
        for _ in range(next(lengths, 0)):
            drafter.extend(drafter.drafts)


def _fastest_length(
    tokens_per_s: Callable[[str, int], float], batch_size: int, longest: int
) -> int:
    """Return the length, from 0 up, with which a batch of this size is fastest."""
    specs = {
        length: f"batch-lengths:lengths={length},sizes={batch_size}"
        for length in range(longest + 1)
    }
    speeds = {length: tokens_per_s(spec, batch_size) for length, spec in specs.items()}
    return max(speeds, key=speeds.__getitem__)
