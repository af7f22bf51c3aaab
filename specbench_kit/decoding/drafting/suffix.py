"""Suffix decoding: the most frequent continuation of the last tokens, in the request's own text and
all outputs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import Capability, DrafterParts, drafters
from specbench_kit.decoding.drafting.look_up import Continuation, LookUp, LookUpDrafter


@drafters.register("suffix")
@dataclass(frozen=True)
class SuffixDrafting(LookUp):
    """Drafts the most frequent continuation after the best match of the last m tokens.

    Matches of less than `min` tokens do not count. A match of m tokens drafts at most `factor` m +
    `offset` tokens, at most `max_draft`, and at most `max_depth` together with the match. The
    estimated probability of a token is the share of the places of all text before it, the present
    end of the text included, where it follows. A draft ends where the product of these shares falls
    below `min_prob`; the match whose products sum up highest wins. With `shared` it also searches
    the outputs of all requests, running ones included, so that results depend on the order of the
    requests.
    """

    max_depth: int = 64
    factor: float = 1.0
    offset: int = 0
    min_prob: float = 0.1
    shared: bool = True
    max_draft: int = 16
    capability = Capability.PROBABILITIES

    def __post_init__(self) -> None:
        limits = (
            ("min", self.min, 1),
            ("max_depth", self.max_depth, self.min + 1),
            ("factor", self.factor, 0),
            ("max_draft", self.max_draft, 1),
        )
        for name, value, least in limits:
            if not value >= least:
                raise SkitError(f"suffix: {name} must be at least {least}, not {value}")
        if not 0 < self.min_prob <= 1:
            raise SkitError(f"suffix: min_prob must lie above 0 and up to 1, not {self.min_prob}")

    @property
    def depends_on_order(self) -> bool:
        return self.shared

    def limit(self, match: int) -> int:
        """Return the most tokens that a match of this length drafts."""
        # The small addend makes up for products such as 0.29 x 100 that come out just below a whole
        # number.
        return max(
            0,
            min(
                self.max_draft,
                int(self.factor * match + self.offset + 1e-6),
                self.max_depth - match,
            ),
        )

    def index(self) -> "SuffixIndex":
        return SuffixIndex(self)

    def source(self, parts: DrafterParts) -> LookUpDrafter:
        return LookUpDrafter(
            self.display_name, SuffixIndex(self, parts.remembered), parts.clock, parts.capacity
        )


Place = tuple[list[int], int]
"""A text and the position in it that follows an occurrence; at the end of the text, nothing follows
yet.
"""


class _Texts:
    """Texts that grow at their ends and are searched together."""

    def __init__(self) -> None:
        self.size = 0
        self._after: defaultdict[int, list[Place]] = defaultdict(list)
        """Token -> the places after its occurrences."""

    def append(self, text: list[int], tokens: Sequence[int]) -> None:
        """Append tokens to one of the texts, which are known by their lists."""
        for token in tokens:
            text.append(token)
            self._after[token].append((text, len(text)))
        self.size += len(tokens)

    def matches(
        self, tokens: Sequence[int], options: SuffixDrafting
    ) -> Iterator[tuple[int, list[Place]]]:
        """Yield the lengths of the matches with the end of `tokens`, and the places after them.

        Of matches with the same places only one is yielded: the one that may draft most, and the
        longest of these.
        """
        longest: dict[int, tuple[int, list[Place]]] = {}
        places = self._after.get(tokens[-1], [])
        for length in range(1, min(options.max_depth, len(tokens))):
            places = [
                (text, end)
                for text, end in places
                if end >= length and text[end - length] == tokens[-length]
            ]
            if all(end == len(text) for text, end in places):
                break
            # A longer match keeps some of a shorter one's places, so as many places means the same
            # places.
            shorter, _ = longest.get(len(places), (length, places))
            if length >= options.min and options.limit(length) >= options.limit(shorter):
                longest[len(places)] = length, places
        yield from longest.values()


def follow(
    places: Sequence[Place], limit: int, least: float
) -> Iterator[tuple[Continuation, float]]:
    """Yield the most frequent next tokens, each with the product of the shares down to it, while it
    is `least` or more.

    Of equally frequent tokens the one that occurred first is taken.
    """
    product = 1.0
    for _ in range(limit):
        counts = Counter(text[end] for text, end in places if end < len(text))
        if not counts:
            return
        ((token, count),) = counts.most_common(1)
        share = count / len(places)  # places where the text ends count too
        product *= share
        if product < least:
            return
        yield Continuation(token, share), product
        places = [(text, end + 1) for text, end in places if end < len(text) and text[end] == token]


class _Match(NamedTuple):
    """A match and its draft; matches are compared by their fields in this order."""

    score: float
    own: bool
    length: int
    path: list[Continuation]


class _Request:
    """The text of a running request, the part of it that is output, and the length of its
    prompt.
    """

    def __init__(self, prompt: int) -> None:
        self.texts = _Texts()
        self.text = list[int]()
        self.output = list[int]()
        self.prompt = prompt


class SuffixIndex:
    """The texts of running requests, and the outputs of these and of finished ones.

    Once finished outputs make it larger than `remembered` tokens, the oldest are forgotten until
    half of that is left.
    """

    def __init__(self, options: SuffixDrafting, remembered: int | None = None) -> None:
        self._options = options
        self._remembered = remembered
        self._running: dict[str, _Request] = {}
        self._outputs = _Texts()
        self._finished: list[list[int]] = []

    def learn(self, request_id: str, tokens: Sequence[int]) -> None:
        # The first that is learned of a request is its prompt, which is not shared.
        if request_id not in self._running:
            self._running[request_id] = _Request(prompt=len(tokens))
        request = self._running[request_id]
        request.texts.append(request.text, tokens[len(request.text) :])
        if self._options.shared:
            self._outputs.append(request.output, tokens[request.prompt + len(request.output) :])

    def look_up(self, request_id: str, tokens: Sequence[int]) -> Iterator[Continuation]:
        return iter(self.best(request_id, tokens).path)

    def best(self, request_id: str, tokens: Sequence[int]) -> _Match:
        """Return the match that scores highest; one with an empty draft if there is none."""
        options = self._options
        own = self._running[request_id].texts
        matches = []
        for texts in (own, self._outputs) if options.shared else (own,):
            for length, places in texts.matches(tokens, options):
                path = list(follow(places, options.limit(length), options.min_prob))
                score = sum(product for _, product in path)
                matches.append(
                    _Match(score, texts is own, length, [continuation for continuation, _ in path])
                )
        return max(matches, default=_Match(0.0, True, 0, []))

    def forget(self, request_id: str) -> None:
        request = self._running.pop(request_id)
        if self._options.shared:
            self._finished.append(request.output)
            if self._remembered is not None and self._outputs.size > self._remembered:
                self._forget_oldest(self._remembered // 2)

    def _forget_oldest(self, room: int) -> None:
        """Forget the oldest finished outputs until all fit in `room` tokens, and index the others
        anew.
        """
        running = [request.output for request in self._running.values()]
        size = sum(map(len, running))
        kept = 0
        for output in reversed(self._finished):
            size += len(output)
            if size > room:
                break
            kept += 1
        self._finished = self._finished[len(self._finished) - kept :]
        self._outputs = _Texts()
        for output in (*self._finished, *running):
            tokens = output.copy()
            output.clear()
            self._outputs.append(output, tokens)
