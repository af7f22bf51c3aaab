"""The method `eagle`: chains of constant length from an EAGLE head."""

from dataclasses import dataclass, field
from typing import ClassVar

from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.methods.base import Group, methods
from specbench_kit.methods.fixed_k import FixedK


@methods.register("eagle")
@dataclass(frozen=True)
class Eagle(FixedK):
    """Draft a chain of `k` tokens with an EAGLE head; `head` is its folder, or `auto` for the
    target's own.
    """

    head: str = "auto"
    drafter: str = field(default="head", init=False)
    group: ClassVar[Group] = "learned"
    source = "EAGLE-3, Li et al. 2025"
    reported_result = (
        "1.38 times the throughput of autoregressive decoding in SGLang at batch size 64; the 6.5 times of the paper "
        "are of the head with a dynamic tree of 60 tokens, as eagle2-tree:drafter=head drafts it"
    )

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.decoding.drafting.head import HeadDrafting

        return HeadDrafting(self.head)
