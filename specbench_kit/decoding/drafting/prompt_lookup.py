"""N-gram drafting: what followed the same last tokens when they were there before."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import drafters
from specbench_kit.decoding.drafting.look_up import Continuation, Index, LookUp


@drafters.register("prompt-lookup")
@dataclass(frozen=True)
class PromptLookupDrafting(LookUp):
    """What followed the longest of the last `min` to `max` tokens, where they stood first in the request's own text."""

    min: int = 1
    max: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise SkitError(f"prompt-lookup: min must lie in 1..max, not {self.min} with max {self.max}")

    def index(self) -> Index:
        return _Places(range(self.min, self.max + 1))


class _Places:
    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._after: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
        """By request: n-gram -> place of the token that first followed it."""
        self._texts: defaultdict[str, list[int]] = defaultdict(list)

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        text, after = self._texts[request_id], self._after[request_id]
        for place in range(len(text), len(tokens)):
            text.append(tokens[place])
            for length in (n for n in self._lengths if n <= place):
                after.setdefault(tuple(tokens[place - length : place]), place)

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        after, text = self._after[request_id], self._texts[request_id]
        grams = (tuple(tokens[-length:]) for length in reversed(self._lengths))
        place = next((after[gram] for gram in grams if gram in after), len(text))
        return (Continuation(token) for token in text[place:])

    def forget(self, request_id: str) -> None:
        del self._texts[request_id], self._after[request_id]
