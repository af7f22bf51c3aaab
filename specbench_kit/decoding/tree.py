"""The drafted tokens of one request in one round."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import cast

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.distributions import (
    Distributions,
    DistributionStats,
    NodeStats,
    TokenScorer,
)
from specbench_kit.decoding.drawn import Verification
from specbench_kit.models.executors.pending import AnyToken, PendingToken, PendingTokens
from specbench_kit.models.executors.tree_rule import TreeRule


class TokenTree:
    """Drafted tokens below the last committed one, which is node 0; parents come before their
    children.
    """

    def __init__(self, root: int) -> None:
        self._tokens: list[AnyToken] = [root]
        self._pending = False
        """True if a token may be on a device still, where the next forward can read it without the
        host.
        """
        self.parents = [-1]
        self._depths = [0]
        self._sources: list[tuple[Distributions, int] | None] = [None]
        self.sampled = False
        """True if any node was drawn at random."""
        self.verification: Verification = "token"
        """The rule for tokens that were drawn at random, which the policy may choose; others are
        always matched.
        """
        self.rule: TreeRule | None = None
        """The rule by which the policy grows the tree from its root, if it says so: a drafter may
        compute ahead by it.
        """
        self.payload_bytes: float | None = None
        """Bytes that go up with the ids of the drafted tokens, if the policy decides it and not the
        deployment.
        """
        self.server_continues = False
        """True if the server decodes the next round too by itself, without waiting for a draft."""
        self.sent_early = False
        """True if nodes of earlier rounds went to the server as they were drafted, before those
        rounds' verdicts.
        """
        self._sent = 0
        """The number of nodes, root included, when the draft was sent; newer ones are proactive."""
        self.inherited = 0
        """Nodes from 1 to this one were drafted in the previous round."""
        self.revealed = 0
        """The last node whose token the policy may know: it read its probability, or what was
        drafted below it.

        A sampled token must not be withheld from verification after that; `boundary` checks it.
        """

        self.drafter = ""
        """The member of a hybrid drafter that drafted the tokens; empty for other drafters."""

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> list[int]:
        """The tokens of all nodes; this waits for those that a device has not delivered yet."""
        if self._pending:
            self._tokens[:] = map(int, self._tokens)
            self._pending = False
        return cast(list[int], self._tokens)

    def tokens_of(self, nodes: Iterable[int]) -> Sequence[int]:
        """Return the tokens of some nodes, without waiting for those that a device has not
        delivered yet.
        """
        tokens = [self._tokens[node] for node in nodes]
        return PendingTokens(tokens) if self._pending else cast(list[int], tokens)

    @property
    def drafted(self) -> int:
        """The number of tokens that this round has drafted."""
        return len(self._tokens) - 1 - self.inherited

    @property
    def last(self) -> int:
        """The newest node."""
        return len(self._tokens) - 1

    @property
    def proactive(self) -> int:
        """The number of nodes drafted after the draft was sent."""
        return len(self._tokens) - self._sent

    def mark_sent(self) -> None:
        """Count every node that is added from now on as proactive, and start what is left to
        compute of the others.
        """
        self._sent = len(self._tokens)
        if self._pending and isinstance(newest := self._tokens[-1], PendingToken):
            newest.source.launch()

    def add(self, token: AnyToken, parent: int, source: Distributions, row: int) -> int:
        """Append a child that came from distribution `row` of `source`, and return its node."""
        node = len(self._tokens)
        if not 0 <= parent < node:
            raise self._no_parent(parent)
        self.sampled = self.sampled or source.sampled
        self._tokens.append(token)
        self._pending = self._pending or isinstance(token, PendingToken)
        self.parents.append(parent)
        self._depths.append(self._depths[parent] + 1)
        self._sources.append((source, row))
        return node

    def extend(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        source: Distributions,
        rows: Sequence[int],
    ) -> range:
        """Append children of existing nodes, all from one source, and return their nodes."""
        first = len(self._tokens)
        depths = self._depths
        if strange := [parent for parent in parents if not 0 <= parent < first]:
            raise self._no_parent(strange[0])
        self.sampled = self.sampled or source.sampled
        self._tokens += tokens
        self.parents += parents
        depths += [depths[parent] + 1 for parent in parents]
        self._sources += zip(repeat(source), rows)
        return range(first, len(self._tokens))

    def below(self, node: int) -> list[int]:
        """Return the node and its descendants, parents before children."""
        subtree = {node}
        # One pass is enough, since parents come before their children.
        for child in range(node + 1, len(self._tokens)):
            if self.parents[child] in subtree:
                subtree.add(child)
        return sorted(subtree)

    def path(self, node: int) -> list[int]:
        """Return the nodes from below the root down to a node."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def rooted_at(self, node: int) -> "TokenTree":
        """Return the part below a node as a tree of its own; its nodes are numbered in the order of
        `below`.
        """
        tree = TokenTree(self.tokens[node])
        new_nodes = {node: 0}
        for child in self.below(node)[1:]:
            new_nodes[child] = tree.add(
                self.tokens[child], new_nodes[self.parents[child]], *self.source(child)
            )
        tree.inherited = tree.last
        return tree

    def depth(self, node: int) -> int:
        """Return the node's distance from the root."""
        return self._depths[node]

    def deepest(self, nodes: Iterable[int]) -> int:
        """Return the largest distance of any of these nodes from the root; 0 if there are none."""
        return max(map(self._depths.__getitem__, nodes), default=0)

    def source(self, node: int) -> tuple[Distributions, int]:
        """Return the distributions that a drafted node came from, and its row among them."""
        source = self._sources[node]
        if source is None:
            raise PolicyError(
                "it asked for statistics of the root, which was not drafted: `drafter.extend` returns the drafts that "
                "had room for a token, the others stay as they are"
            )
        return source

    def distribution_stats(self, node: int) -> DistributionStats:
        """Return what the draft model said before a node was drawn; this may decide whether the
        node is verified.
        """
        source, row = self.source(node)
        self.revealed = max(self.revealed, self.parents[node])
        stats = source.stats(row, self.tokens[node])
        return DistributionStats(stats.confidence, stats.entropy, stats.margin, stats.logit_std)

    def stats(self, node: int) -> NodeStats:
        """Return the draft statistics of a drafted node, its token's probability included."""
        source, row = self.source(node)
        self.revealed = max(self.revealed, node)
        return source.stats(row, self.tokens[node])

    def probability(self, node: int) -> float:
        """Return the draft probability of a drafted node's token."""
        source, row = self.source(node)
        self.revealed = max(self.revealed, node)
        return source.probability(row, self.tokens[node])

    def score(self, node: int, scorer: TokenScorer) -> float:
        """Return a scorer's score of a drafted node; the node's own token is not revealed by it."""
        source, row = self.source(node)
        self.revealed = max(self.revealed, self.parents[node])
        return source.score(row, self.tokens[node], self._depths[node], scorer)

    def path_probability(self, node: int) -> float:
        """Return the product of the draft probabilities from the root down to a node."""
        product = 1.0
        while node > 0:
            product *= self.probability(node)
            node = self.parents[node]
        return product

    def _no_parent(self, parent: int) -> PolicyError:
        return PolicyError(
            f"a child was added to node {parent} of a tree whose nodes are 0 to {self.last}"
        )
