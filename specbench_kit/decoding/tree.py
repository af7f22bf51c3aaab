"""The drafted tokens of one request in one round."""

from collections.abc import Iterable, Sequence
from itertools import repeat

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.distributions import Distributions, DistributionStats, NodeStats, TokenScorer


class TokenTree:
    """Drafted tokens below the last committed one, which is node 0; parents come before their children."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._depths = [0]
        self._sources: list[tuple[Distributions, int] | None] = [None]
        self.sampled = False
        """Whether any node was drawn at random."""
        self.sent = 0
        """Nodes that there were, the root included, when the draft was sent; newer ones are proactive."""
        self.inherited = 0
        """Nodes from 1 to this one were drafted in the round before."""
        self.known = 0
        """The last node whose token somebody knows: by its probability, or by what was drafted below it."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """Tokens that this round has drafted."""
        return len(self.tokens) - 1 - self.inherited

    @property
    def last(self) -> int:
        """The newest node."""
        return len(self.tokens) - 1

    @property
    def proactive(self) -> int:
        """Nodes that were drafted after the others had been sent."""
        return len(self.tokens) - self.sent

    def add(self, token: int, parent: int, source: Distributions, row: int) -> int:
        """Append a child that came from distribution `row` of `source`; returns its node."""
        node = len(self.tokens)
        if not 0 <= parent < node:
            raise self._no_parent(parent)
        self.sampled = self.sampled or source.sampled
        self.tokens.append(token)
        self.parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._sources.append((source, row))
        return node

    def extend(
        self, tokens: Sequence[int], parents: Sequence[int], source: Distributions, rows: Sequence[int]
    ) -> range:
        """Append children of nodes that are there already, all from one source; returns their nodes."""
        first, depths = len(self.tokens), self._depths
        if strange := [parent for parent in parents if not 0 <= parent < first]:
            raise self._no_parent(strange[0])
        self.sampled = self.sampled or source.sampled
        self.tokens += tokens
        self.parents += parents
        depths += [depths[parent] + 1 for parent in parents]
        self._sources += zip(repeat(source), rows)
        return range(first, len(self.tokens))

    def below(self, node: int) -> list[int]:
        """The node and its descendants, parents before children."""
        found = {node}
        for child in range(node + 1, len(self.tokens)):
            if self.parents[child] in found:
                found.add(child)
        return sorted(found)

    def path(self, node: int) -> list[int]:
        """The way down to a node, without the root."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def rooted_at(self, node: int) -> "TokenTree":
        """The part below a node as a tree of its own; nodes are numbered in the order of `below`."""
        tree = TokenTree(self.tokens[node])
        place = {node: 0}
        for child in self.below(node)[1:]:
            place[child] = tree.add(self.tokens[child], place[self.parents[child]], *self.source(child))
        tree.inherited = tree.last
        return tree

    def depth(self, node: int) -> int:
        """Distance from the root."""
        return self._depths[node]

    def deepest(self, nodes: Iterable[int]) -> int:
        """The largest distance of any of these from the root."""
        return max(map(self._depths.__getitem__, nodes), default=0)

    def source(self, node: int) -> tuple[Distributions, int]:
        """The distribution that a drafted node was drawn from."""
        source = self._sources[node]
        assert source is not None
        return source

    def distribution_stats(self, node: int) -> DistributionStats:
        """What the draft model said before it drafted a node: what may decide whether the node is verified."""
        source, row = self.source(node)
        self.known = max(self.known, self.parents[node])
        stats = source.stats(row, self.tokens[node])
        return DistributionStats(stats.confidence, stats.entropy, stats.margin, stats.logit_std)

    def stats(self, node: int) -> NodeStats:
        """Draft statistics of a drafted node."""
        source, row = self.source(node)
        self.known = max(self.known, node)
        return source.stats(row, self.tokens[node])

    def probability(self, node: int) -> float:
        """Draft probability of a drafted node's token."""
        source, row = self.source(node)
        self.known = max(self.known, node)
        return source.probability(row, self.tokens[node])

    def score(self, node: int, scorer: TokenScorer) -> float:
        """What a judge says of a drafted node."""
        source, row = self.source(node)
        self.known = max(self.known, self.parents[node])
        return source.score(row, self.tokens[node], self._depths[node], scorer)

    def path_probability(self, node: int) -> float:
        """Cumulative draft probability from the root."""
        product = 1.0
        while node > 0:
            product *= self.probability(node)
            node = self.parents[node]
        return product

    def _no_parent(self, parent: int) -> PolicyError:
        return PolicyError(f"a child was added to node {parent} of a tree whose nodes are 0 to {self.last}")
