"""Suffix decoding: what most often followed the last tokens, in the request's own text and in finished outputs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, drafters
from specbench_kit.decoding.drafting.look_up import Continuation, LookUp, LookUpDrafter

END = -1
"""Stands between outputs: nothing matches across it."""


@drafters.register("suffix")
@dataclass(frozen=True)
class SuffixDrafting(LookUp):
    """Drafts the most frequent continuation after the best match of the last m tokens, for m up to `max_depth`.

    Matches of less than `min` tokens do not count. A match of m tokens drafts at most `factor` m + `offset` tokens,
    while the product of their count ratios is at least `min_prob`; the match whose products sum up highest wins. With
    `shared` it also searches finished outputs, so that results depend on the order of the requests.
    """

    max_depth: int = 64
    factor: float = 1.0
    offset: int = 0
    min_prob: float = 0.1
    shared: bool = True
    capability = Capability.PROBABILITIES

    def __post_init__(self) -> None:
        limits = (("min", self.min, 1), ("max_depth", self.max_depth, self.min), ("factor", self.factor, 0))
        for name, value, least in limits:
            if not value >= least:
                raise SkitError(f"suffix: {name} must be at least {least}, not {value}")
        if not 0 < self.min_prob <= 1:
            raise SkitError(f"suffix: min_prob must lie above 0 and up to 1, not {self.min_prob}")

    @property
    def depends_on_order(self) -> bool:
        return self.shared

    def index(self) -> "SuffixIndex":
        return SuffixIndex(self)

    def source(self, parts: DrafterParts) -> LookUpDrafter:
        return LookUpDrafter(self.display_name, SuffixIndex(self, parts.remembered), parts.clock, parts.capacity)


@dataclass(slots=True)
class _Text:
    tokens: list[int] = field(default_factory=list)
    after: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Token -> the positions that follow its occurrences."""
    prompt: int = 0

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.tokens:
                self.after[self.tokens[-1]].append(len(self.tokens))
            self.tokens.append(token)

    def matches(self, tokens: Sequence[int], depth: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the lengths of the matches with the end of `tokens`, and the positions that follow them.

        Of matches followed by the same positions only the longest is yielded: it drafts what the others do, and more.
        """
        # A longer match keeps some of a shorter one's positions, so as many positions means the same positions.
        longest: dict[int, tuple[int, list[int]]] = {}
        positions = self.after.get(tokens[-1], [])
        for length in range(1, min(depth, len(tokens)) + 1):
            positions = [end for end in positions if end >= length and self.tokens[end - length] == tokens[-length]]
            if not positions:
                break
            longest[len(positions)] = length, positions
        yield from longest.values()

    def follow(self, positions: Sequence[int], limit: int, least: float) -> Iterator[tuple[Continuation, float]]:
        """Yield the most frequent next tokens, each with the product of the count ratios down to it."""
        product = 1.0
        for _ in range(limit):
            counts = Counter(self.tokens[position] for position in positions if position < len(self.tokens))
            token, count = counts.most_common(1)[0] if counts else (END, 0)
            ratio = count / counts.total() if count else 0.0
            product *= ratio
            if token == END or product < least:
                return
            yield Continuation(token, ratio), product
            positions = [
                position + 1 for position in positions if position < len(self.tokens) and self.tokens[position] == token
            ]


class _Match(NamedTuple):
    """A match and its draft; matches are compared by their fields in this order."""

    score: float
    length: int
    own: bool
    path: list[Continuation]


class SuffixIndex:
    """The texts of running requests, and all outputs so far, or at most `remembered` tokens of the newest ones."""

    def __init__(self, options: SuffixDrafting, remembered: int | None = None) -> None:
        self._options, self._remembered = options, remembered
        self._own: defaultdict[str, _Text] = defaultdict(_Text)
        self._outputs = _Text()

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        text = self._own[request_id]
        text.prompt = text.prompt or len(tokens)  # the first that is learned of a request is its prompt
        text.append(tokens[len(text.tokens) :])

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        return iter(self.best(request_id, tokens).path)

    def best(self, request_id: str, tokens: Sequence[int]) -> _Match:
        """Return the match that scores highest; one with an empty draft if there is none."""
        options, own = self._options, self._own[request_id]
        matches = []
        for text in (own, self._outputs) if options.shared else (own,):
            for length, positions in text.matches(tokens, options.max_depth):
                if length < options.min:
                    continue
                limit = int(options.factor * length + options.offset)
                path = list(text.follow(positions, limit, options.min_prob))
                score = sum(product for _, product in path)
                matches.append(_Match(score, length, text is own, [continuation for continuation, _ in path]))
        return max(matches, default=_Match(0.0, 0, True, []))

    def forget(self, request_id: str) -> None:
        text = self._own.pop(request_id)
        if self._options.shared:
            self._outputs.append([*text.tokens[text.prompt :], END])
            if self._remembered is not None and len(self._outputs.tokens) > self._remembered:
                # Half of it goes at a time, since what is kept has to be indexed anew.
                newest = self._outputs.tokens[-(self._remembered // 2) :]
                self._outputs = _Text()
                self._outputs.append(newest)
