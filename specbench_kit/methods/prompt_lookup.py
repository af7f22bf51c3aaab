"""The method `prompt-lookup`: chains of constant length by n-gram matching."""

from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

from specbench_kit.core.option import OptionValues
from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.methods.base import (
    Capability,
    Environment,
    Method,
    MethodInputs,
    Policy,
    methods,
    require,
)
from specbench_kit.methods.fixed_k import FixedK

# Fitted to the rounds of 768 answers of SmolLM2-135M-Instruct (chat, summaries, questions, code,
# maths, translation; half of them sampled) with drafts of 1 to 10 tokens: at any cost of a token,
# the length that is chosen reaches 99 % of the best length's tokens per second.
DECAY = 1.4
"""A draft's i-th token adds `acceptance` / i to the power of this to the expected number of
accepted tokens.
"""
FOUND = 0.6
"""Share of rounds in which an n-gram occurred before, so that anything is drafted."""
LONGEST = 10
"""Longest draft that is chosen without being asked for, which is prompt lookup's usual one on a
GPU.
"""
UNKNOWN_LENGTH = 3
"""Draft length where the verification's times are unknown: 93 to 100 % of the best from a free
token to one of 0.1 forwards.
"""
CONTEXT = 256
"""Tokens in KV of the verifications that are compared."""


@methods.register("prompt-lookup")
@dataclass(frozen=True)
class PromptLookup(Method):
    """Draft the `k` tokens that followed the first earlier occurrence of the newest n-gram of
    prompt and answer.

    The n-gram is the longest of `max` down to `min` tokens that occurred before. By default `k` is
    the length of up to 10 with the most expected tokens per second, by the target's verification
    times where a deployment or a latency profile on this machine states them, else 3. `acceptance`
    is the probability that the first token is accepted. Where fewer than `k` tokens follow the
    occurrence, they are the draft; the original asks for all of them.
    """

    k: int | None = None
    min: int = 1
    max: int = 3
    acceptance: float = 0.43
    drafter: str = field(default="prompt-lookup", init=False)
    chosen: str = field(default="", init=False, repr=False, compare=False)
    """What a prepared method chose `k` by; empty if the option states it."""
    required_capability = Capability.TOKENS
    draft_limit = "k"
    source = "prompt lookup decoding, Saxena 2023"
    reported_result = "2 to 4 times autoregressive decoding where answers repeat their prompts"
    group = "draft-free"
    grid = MappingProxyType({"k": (2, 4, 10), "min": (1, 2), "max": (3, 4)})

    def __post_init__(self) -> None:
        require(self.k is None or self.k >= 1, f"prompt-lookup: k must be at least 1, not {self.k}")
        self.require_share("acceptance")
        _ = self.drafting  # raises SkitError for a bad range

    @property
    def drafting(self) -> Drafting:
        from specbench_kit.decoding.drafting import look_up

        return look_up.PromptLookupDrafting(min=self.min, max=self.max)

    def prepare(self, environment: Environment) -> Method:
        if self.k is not None:
            return self
        verification = environment.verification()
        length = (
            UNKNOWN_LENGTH
            if verification is None
            else self._fastest_length(verification, environment)
        )
        ready = replace(self, k=length)
        by = (
            "a default, since no verification times are known"
            if verification is None
            else "verification times"
        )
        object.__setattr__(ready, "chosen", by)
        return ready

    def uses(self) -> MethodInputs:
        return {"k_by": self.chosen} if self.chosen else {}

    def chosen_options(self) -> OptionValues:
        return {"k": self.k} if self.chosen else {}

    def policy(self) -> Policy:
        return FixedK(self.k or UNKNOWN_LENGTH).policy()

    def _fastest_length(self, verification: LatencyModel, environment: Environment) -> int:
        """Return the draft length with the most expected tokens per second."""
        longest = min(LONGEST, (verification.most_new_tokens or LONGEST + 1) - 1)
        accepted: list[float] = list(
            accumulate(self.acceptance / i**DECAY for i in range(1, longest + 1))
        )

        def round_s(length: int) -> float:
            rows = [(1 + length, CONTEXT)] * environment.batch_size
            return environment.link_s + verification.seconds(rows)

        def tokens_per_s(length: int) -> float:
            seconds = (1 - FOUND) * round_s(0) + FOUND * round_s(length)
            return (1 + FOUND * accepted[length - 1]) / seconds

        return max(range(1, longest + 1), key=tokens_per_s, default=1)
