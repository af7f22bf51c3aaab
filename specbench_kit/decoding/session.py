"""One request on its way: its tokens, its limits, and the one rule for where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench_kit.decoding.records import FinishReason, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be decoded. `reference` is the target's answer, for methods that may read it."""

    id: str
    category: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    reference: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Session:
    """A request in the batch. `tokens` is prompt and output; the last of them is not yet in any KV."""

    request: Request
    random: RequestRandom
    eos_ids: frozenset[int]
    arrival_s: float
    """When it was submitted: when one of the batch's places was free for it."""
    record: RequestRecord
    tokens: list[int] = field(init=False)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)

    @property
    def produced(self) -> int:
        """Tokens of the output so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    def commit(self, tokens: Sequence[int]) -> int:
        """Append verified tokens up to end-of-sequence or the length limit; returns how many were kept."""
        room = self.request.max_new_tokens - self.produced
        kept = list(tokens[:room])
        if not self.eos_ids.isdisjoint(kept):
            end = next(i for i, token in enumerate(kept) if token in self.eos_ids)
            del kept[end + 1 :]
            self.finish_reason = "eos"
        elif len(kept) == room:
            self.finish_reason = "length"
        self.tokens.extend(kept)
        return len(kept)
