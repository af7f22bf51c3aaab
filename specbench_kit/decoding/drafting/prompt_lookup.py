"""N-gram drafting: the tokens that followed the last few tokens where these occurred before."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import drafters
from specbench_kit.decoding.drafting.look_up import Continuation, LookUp, TextIndex


@drafters.register("prompt-lookup")
@dataclass(frozen=True)
class PromptLookupDrafting(LookUp):
    """Drafts what followed the first occurrence, in the request's own text, of its last `min` to `max` tokens.

    The longest n-gram that occurred before counts.
    """

    max: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.max:
            raise SkitError(f"prompt-lookup: min must lie in 1..max, not {self.min} with max {self.max}")

    def index(self) -> TextIndex:
        return _FirstOccurrences(range(self.min, self.max + 1))


class _FirstOccurrences:
    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._after: defaultdict[str, dict[tuple[int, ...], int]] = defaultdict(dict)
        """By request: n-gram -> position of the token that first followed it."""
        self._texts: defaultdict[str, list[int]] = defaultdict(list)

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        text, after = self._texts[request_id], self._after[request_id]
        for position in range(len(text), len(tokens)):
            text.append(tokens[position])
            for length in (n for n in self._lengths if n <= position):
                after.setdefault(tuple(tokens[position - length : position]), position)

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        after, text = self._after[request_id], self._texts[request_id]
        grams = (tuple(tokens[-length:]) for length in reversed(self._lengths))
        position = next((after[gram] for gram in grams if gram in after), len(text))
        return (Continuation(token) for token in text[position:])

    def forget(self, request_id: str) -> None:
        del self._texts[request_id], self._after[request_id]
