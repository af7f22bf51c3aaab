"""Suffix decoding: what most often followed the last tokens, in the request's own text and in finished outputs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import Capability, drafters
from specbench_kit.decoding.drafting.look_up import Continuation, LookUp


@drafters.register("suffix")
@dataclass(frozen=True)
class SuffixDrafting(LookUp):
    """For each match of the last m tokens, m up to `max_depth`, the most frequent next ones; the best match counts.

    At most `factor` m + `offset` tokens, while the product of their count ratios is at least `min_prob`; a match scores
    the sum of these products. `shared` looks into finished outputs too, so that results depend on the requests' order.
    """

    max_depth: int = 64
    factor: float = 1.0
    offset: int = 0
    min_prob: float = 0.1
    shared: bool = True
    capability = Capability.PROBABILITIES

    def __post_init__(self) -> None:
        for name, value, least in (("max_depth", self.max_depth, 1), ("factor", self.factor, 0)):
            if not value >= least:
                raise SkitError(f"suffix: {name} must be at least {least}, not {value}")
        if not 0 < self.min_prob <= 1:
            raise SkitError(f"suffix: min_prob must lie above 0 and up to 1, not {self.min_prob}")

    def index(self) -> "SuffixIndex":
        return SuffixIndex(self)


@dataclass(slots=True)
class _Text:
    tokens: list[int] = field(default_factory=list)
    places: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Token -> the places that follow it."""
    prompt: int = 0

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.tokens:
                self.places[self.tokens[-1]].append(len(self.tokens))
            self.tokens.append(token)

    def matches(self, tokens: Sequence[int], depth: int) -> Iterator[tuple[int, list[int]]]:
        """Lengths of the matches, and the places that follow them.

        Of those at the same places only the longest, which drafts as the others do and further.
        """
        found: dict[int, tuple[int, list[int]]] = {}
        places = self.places.get(tokens[-1], [])
        for length in range(1, min(depth, len(tokens)) + 1):
            places = [place for place in places if place >= length and self.tokens[place - length] == tokens[-length]]
            if not places:
                break
            found[len(places)] = length, places
        yield from found.values()

    def follow(self, places: Sequence[int], limit: int, least: float) -> Iterator[tuple[Continuation, float]]:
        """The most frequent next tokens, each with the product of the count ratios down to it."""
        product = 1.0
        for _ in range(limit):
            counts = Counter(self.tokens[place] for place in places if place < len(self.tokens))
            token, count = counts.most_common(1)[0] if counts else (END, 0)
            ratio = count / counts.total() if count else 0.0
            product *= ratio
            if token == END or product < least:
                return
            yield Continuation(token, ratio), product
            places = [place + 1 for place in places if place < len(self.tokens) and self.tokens[place] == token]


END = -1
"""Stands between outputs: nothing matches across it."""


class _Match(NamedTuple):
    """Compared in this order."""

    score: float
    length: int
    own: bool
    path: list[Continuation]


class SuffixIndex:
    """Those of the requests that are decoded, and all outputs so far."""

    def __init__(self, options: SuffixDrafting) -> None:
        self._options = options
        self._own: defaultdict[str, _Text] = defaultdict(_Text)
        self._outputs = _Text()

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        text = self._own[request_id]
        text.prompt = text.prompt or len(tokens)  # what comes first is the prompt
        text.append(tokens[len(text.tokens) :])

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        return iter(self.best(request_id, tokens).path)

    def best(self, request_id: str, tokens: Sequence[int]) -> _Match:
        """The match that scores highest; one that drafts nothing where there is none."""
        texts = (self._own[request_id], self._outputs) if self._options.shared else (self._own[request_id],)
        found = [self._weigh(text, match, own=text is texts[0]) for text in texts for match in self._in(text, tokens)]
        return max(found, default=_Match(0.0, 0, True, []))

    def forget(self, request_id: str) -> None:
        text = self._own.pop(request_id)
        if self._options.shared:
            self._outputs.append([*text.tokens[text.prompt :], END])

    def _in(self, text: _Text, tokens: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        return text.matches(tokens, self._options.max_depth)

    def _weigh(self, text: _Text, match: tuple[int, list[int]], *, own: bool) -> _Match:
        length, places = match
        limit = int(self._options.factor * length + self._options.offset)
        path = list(text.follow(places, limit, self._options.min_prob))
        return _Match(sum(product for _, product in path), length, own, [found for found, _ in path])
