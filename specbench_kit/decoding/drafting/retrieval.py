"""Retrieval from an external corpus: a tree of the most frequent continuations of the newest tokens
(REST).
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import whole_number
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import Capability, DrafterParts
from specbench_kit.decoding.drafting.look_up import (
    LookUp,
    LookUpDistribution,
    LookUpDrafter,
    NoDrafting,
    TextIndex,
)
from specbench_kit.decoding.session import Session

MOST_MATCHES = 5000
"""Places in the corpus that are read for one draft."""
LONGEST_PATH = 10
"""Tokens that are read at each place, and so the depth of the tree."""
SHORTEST_MATCH = 2
LISTED_BY = 2
"""Tokens of an n-gram by which places are found; longer matches are among its places."""


class RetrievedNode(NamedTuple):
    """A token of a retrieved tree.

    `parent` is the parent's index in the list, -1 for the root, and `share` the part of the parent's occurrences that
    this token followed.
    """

    parent: int
    token: int
    share: float


class Corpus:
    """Texts as token ids, with the places of every pair of tokens."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._texts = [tuple(text) for text in texts]
        self._places: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for number, text in enumerate(self._texts):
            for end in range(LISTED_BY, len(text)):
                self._places[text[end - LISTED_BY : end]].append((number, end))

    def retrieve(self, tokens: Sequence[int], longest: int, nodes: int) -> list[RetrievedNode]:
        """Return the tree of the `nodes` most frequent continuations of the longest match of 2 to
        `longest` tokens.
        """
        counts: Counter[tuple[int, ...]] = Counter()
        for number, end in islice(self._matches(tokens, longest), MOST_MATCHES):
            following = self._texts[number][end : end + LONGEST_PATH]
            counts.update(following[:length] for length in range(1, len(following) + 1))
        # A path is never more frequent than its beginning, which is shorter: the best paths are a
        # tree.
        best = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:nodes]
        index: dict[tuple[int, ...], int] = {(): -1} | {
            path: place for place, path in enumerate(best)
        }
        first = sum(count for path, count in counts.items() if len(path) == 1)
        return [
            RetrievedNode(
                index[path[:-1]],
                path[-1],
                counts[path] / (counts[path[:-1]] if path[:-1] else first),
            )
            for path in best
        ]

    def _matches(self, tokens: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
        """Yield the places behind the longest match: the number of the text, and the position after
        the match.
        """
        places = self._places.get(tuple(tokens[-LISTED_BY:]), [])
        length = SHORTEST_MATCH
        while length < min(longest, len(tokens)):
            token = tokens[-length - 1]
            longer = [
                (n, end)
                for n, end in places
                if end > length and self._texts[n][end - length - 1] == token
            ]
            if not longer:
                break
            places = longer
            length = length + 1
        yield from places


@lru_cache(maxsize=2)
def load_corpus(path: str) -> Corpus:
    """Return the corpus in a file of JSON lines with `output_ids`, such as the `requests.jsonl` of
    a run.

    Raise SkitError if it cannot be read, or holds no text.
    """
    try:
        rows = [
            json.loads(line, parse_int=whole_number)
            for line in Path(path).expanduser().read_text(encoding="utf-8").splitlines()
        ]
        texts = [list(map(int, row["output_ids"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkitError(
            f"cannot read the corpus '{path}': give the requests.jsonl of a run of this target"
        ) from error
    if not any(texts):
        raise SkitError(f"the corpus '{path}' holds no answers")
    return Corpus(texts)


@dataclass(frozen=True)
class RetrievalDrafting(LookUp):
    """Drafts trees from a corpus; it belongs to the method `rest`, since other methods draft chains
    by look-ups.
    """

    corpus: str = ""
    span: int = 16
    nodes: int = 64
    capability: ClassVar[Capability] = Capability.TREES
    recordable: ClassVar[bool] = False
    display_name = "retrieval"

    def index(self) -> TextIndex:
        return NoDrafting().index()

    def source(self, parts: DrafterParts) -> "RetrievalDrafter":
        return RetrievalDrafter(self, parts)


def _allowed(draft: Draft, nodes: list[RetrievedNode]) -> list[RetrievedNode]:
    """Return the nodes that the request's grammar allows, without what hangs below others."""
    grammar = draft.session.grammar
    if grammar is None:
        return nodes
    paths: dict[int, list[int]] = {-1: []}
    places = {-1: -1}
    kept: list[RetrievedNode] = []
    for number, node in enumerate(nodes):
        if node.parent in places and grammar.allows(paths[node.parent], node.token):
            paths[number] = [*paths[node.parent], node.token]
            places[number] = len(kept)
            kept.append(node._replace(parent=places[node.parent]))
    return kept


class RetrievalDrafter(LookUpDrafter):
    """Adds one node of the retrieved tree to each draft at a time, the most frequent first."""

    def __init__(self, options: RetrievalDrafting, parts: DrafterParts) -> None:
        super().__init__(options.display_name, options.index(), parts.clock, parts.capacity)
        self._options = options
        self._corpus = load_corpus(options.corpus)
        self._retrieved: dict[str, list[RetrievedNode]] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._retrieved.clear()
        return super().begin(sessions)

    def _grow(self, draft: Draft) -> bool:
        tree = draft.tree
        name = draft.request_id
        if name not in self._retrieved:
            tokens = draft.session.tokens
            options = self._options
            nodes = self._corpus.retrieve(tokens, options.span, options.nodes)
            self._retrieved[name] = _allowed(draft, nodes)
        if tree.last >= len(self._retrieved[name]):
            return False
        node = self._retrieved[name][tree.last]
        tree.add(
            node.token,
            node.parent + 1,
            LookUpDistribution(self._name, float(np.float32(node.share))),
            0,
        )
        return True
