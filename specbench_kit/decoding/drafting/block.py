"""Drafters of one forward, such as PARD, P-EAGLE, DFlash, MTP heads or Medusa: modelled on the
pair's draft model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import ClassVar

from torch import Tensor

from specbench_kit.core.errors import require
from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.distributions import Distributions, NodeStats, TokenScorer
from specbench_kit.decoding.drafter import Draft, DraftSource, Forwarded
from specbench_kit.decoding.drafting.base import DRAFT, Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.chains import ReportingChainDrafter
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.latency import LatencyModel
from specbench_kit.decoding.session import Session


@drafters.register("block")
@dataclass(frozen=True)
class BlockDrafting(Drafting):
    """The draft model's most likely tokens, of which `size` take the time of one forward.

    Drafters of one forward guess later tokens without having seen the earlier ones, so that they are right less often.
    `keep` states, by position in the block, what share of the draft model's tokens they guess too; the last share
    counts for all further positions, and the other tokens are replaced by wrong ones, with the statistics of the
    model's. A forward of `size` positions takes what the deployment says of its drafter: without a deployment this
    drafter is refused. Methods that weigh time count 1/`size` of a forward per token.
    """

    size: int = 8
    keep: tuple[float, ...] = (1.0,)
    capability = Capability.STATISTICS
    modelled: ClassVar[bool] = True
    drawn = False

    def __post_init__(self) -> None:
        require(self.size >= 1, f"block: size must be at least 1, not {self.size}")
        shares = "-".join(f"{share:g}" for share in self.keep)
        require(
            all(0 <= share <= 1 for share in self.keep),
            f"block: keep must have shares in 0..1, not {shares}",
        )

    @property
    def is_bound(self) -> bool:
        return self.size > 1 and min(self.keep) == 1

    @property
    def tokens_per_forward(self) -> int:
        return self.size

    def kept(self, position: int) -> float:
        """Return the share of tokens that are kept at a position of a block, counted from 0."""
        return self.keep[min(position, len(self.keep) - 1)]

    def source(self, parts: DrafterParts) -> "BlockDrafter":
        model = ModelDrafter(parts.models[DRAFT], parts.sampler, parts.clock, False, parts.capacity)
        return BlockDrafter(model, self, parts.clock)

    def over(self, recorded: DraftSource, clock: Clock) -> "BlockDrafter":
        return BlockDrafter(recorded, self, clock)

    def latencies(self, draft: LatencyModel) -> Mapping[str, LatencyModel]:
        return {DRAFT: draft}


@dataclass(frozen=True, slots=True)
class _ModelsOwn:
    """The distribution of the model's own token, whichever token is drafted in its place."""

    source: Distributions
    row: int
    token: int
    sampled: ClassVar[bool] = False

    def stats(self, row: int, token: int) -> NodeStats:
        return self.source.stats(self.row, self.token)

    def probability(self, row: int, token: int) -> float:
        return self.source.probability(self.row, self.token)

    def score(self, row: int, token: int, depth: int, scorer: TokenScorer) -> float:
        return self.source.score(self.row, self.token, depth, scorer)


@dataclass(slots=True)
class _Request:
    """A request's chain of the draft model in this round, and the number of tokens of its text that
    are in KV.
    """

    chain: Draft
    cached: int = 0


class BlockDrafter(ReportingChainDrafter):
    """Drafts chains of a model, and reports a forward per block where the model forwards every
    token.
    """

    def __init__(self, model: DraftSource, options: BlockDrafting, clock: Clock) -> None:
        super().__init__("block", clock)
        self._model = model
        self._options = options
        self._requests: dict[str, _Request] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._forwards.clear()
        for chain in self._model.begin(sessions):
            self._requests.setdefault(chain.request_id, _Request(chain)).chain = chain
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take before the context is full."""
        return self._model.room(self._requests[draft.request_id].chain)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the next token to each chain, and return the drafts that had room for it."""
        chains = [self._chain(draft) for draft in drafts]
        grown_ids = {chain.request_id for chain in self._model.extend(chains)}
        grown = [draft for draft in drafts if draft.request_id in grown_ids]
        self._report([draft for draft in grown if draft.tree.last % self._options.size == 0])
        for draft in grown:
            chain = self._chain(draft).tree
            source = _ModelsOwn(*chain.source(chain.last), chain.tokens[chain.last])
            draft.tree.add(self._token(draft), draft.tree.last, source, 0)
        return grown

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Commit the accepted tokens in the model, as far as it drafted them itself."""
        chain = self._chain(draft)
        own = takewhile(lambda node: draft.tree.tokens[node] == chain.tree.tokens[node], path)
        self._model.commit(chain, list(own))

    def release(self, session: Session) -> None:
        """Free what a finished request held in the model."""
        self._requests.pop(session.request.id, None)
        self._model.release(session)

    def _chain(self, draft: Draft) -> Draft:
        return self._requests[draft.request_id].chain

    def _token(self, draft: Draft) -> int:
        """Return the model's next token, or a wrong one in its place, as often as the options
        say.
        """
        position = draft.tree.last
        token = self._chain(draft).tree.tokens[position + 1]
        # Seeded by the place in the text, so that no run and no batch replaces other tokens.
        number = Random(f"{draft.request_id} {draft.context_length} {position}").random()
        kept = number < self._options.kept(position % self._options.size)
        (allowed,) = draft.allowed_after([draft.tree.last])
        if allowed is None:
            return token if kept else int(not token)
        if kept and draft.allows(token, draft.tree.last):
            return token
        # A drafter that knows the grammar guesses wrong among what is allowed, if there is a choice.
        others = [int(other) for other in allowed.nonzero()[0][:2] if other != token]
        return others[0] if others else token

    def _report(self, drafts: Sequence[Draft]) -> None:
        """Note the forward of a block: the committed tokens since the last one, and a position per
        further token.
        """
        rows = {}
        for draft in drafts:
            request = self._requests[draft.request_id]
            text = draft.context_length + draft.tree.last
            if not request.cached and text > 1:
                self._forwards.append(
                    Forwarded(DRAFT, "prefill", {draft.request_id: (text - 1, 0)})
                )
                request.cached = text - 1
            rows[draft.request_id] = (
                text - request.cached + self._options.size - 1,
                request.cached,
            )
            # Tokens of the block are committed by the target, and read anew with the next block.
            request.cached = draft.context_length
        if rows:
            self._forwards.append(Forwarded(DRAFT, "draft", rows))
