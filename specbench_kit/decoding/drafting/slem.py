"""String-level exact matching: a draft model with a tokenizer of its own drafts text, which the
target's reads anew.

Timor et al. 2025 (arXiv 2502.05202, algorithm 2), as the universal assisted generation of
transformers has it: the drafted text is matched exactly, so that greedy and sampled outputs stay
the target's whatever the tokenizers share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import Phase
from specbench_kit.decoding.drafter import Draft, Drafter, Forwarded
from specbench_kit.decoding.drafting.base import DRAFT, Capability, DrafterParts, Drafting, drafters
from specbench_kit.decoding.drafting.chains import ReportingChainDrafter
from specbench_kit.decoding.drafting.look_up import LookUpDistribution
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.decoding.session import Session
from specbench_kit.models.runner import Append, refuse_nan
from specbench_kit.models.vocabulary_map import Texts, TranslatingRunner

WINDOW = 16
"""Tokens at the end of a text that more text may split anew: they are read again, and stay out of
the committed KV.
"""
MOST_PIECES = 8
"""Tokens of the draft's that a token of the target's may take, such as the bytes of a rare
character.
"""


@drafters.register("slem")
@dataclass(frozen=True)
class SlemDrafting(Drafting):
    """The draft model's most likely text, split into tokens of the target; verified by matching.

    A token is drafted once `settled` further tokens follow it in the drafted text, since a text
    that goes on may be split differently. Each of these costs a forward per round. Where both
    models have one vocabulary this is the draft model's most likely chain.
    """

    settled: int = 1
    capability = Capability.TOKENS
    drawn = False

    def __post_init__(self) -> None:
        if self.settled < 0:
            raise SkitError(f"slem: settled must be at least 0, not {self.settled}")

    def source(self, parts: DrafterParts) -> Drafter:
        runner = parts.models[DRAFT]
        if isinstance(runner, TranslatingRunner) and runner.texts is not None:
            return SlemDrafter(runner, runner.texts, parts, self.settled)
        return ModelDrafter(runner, parts.sampler, parts.clock, False, parts.capacity)

    def latencies(self, draft: LatencyModel) -> Mapping[str, LatencyModel]:
        return {DRAFT: draft}


@dataclass(slots=True)
class _Chain:
    """One request's text as the draft model reads it.

    `held` are the tokens in the model's KV; `text` those of the committed text, in the draft's vocabulary, and behind
    them what this round has drafted.
    """

    slot: int
    held: list[int] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    drafted: int = 0
    """The number of tokens at the end of `text` that this round has drafted."""
    ended: bool = False
    """True if this round cannot draft any further."""


class SlemDrafter(ReportingChainDrafter):
    """Drafts chains by forwards of the draft model on its own tokens, of which the target's are
    read off.
    """

    def __init__(
        self, runner: TranslatingRunner, texts: Texts, parts: DrafterParts, settled: int
    ) -> None:
        super().__init__("slem", parts.clock)
        self._runner = runner
        self._texts = texts
        self._capacity = parts.capacity
        self._settled = settled
        self._chains: dict[str, _Chain] = {}

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees; a text is read when its first token is drafted."""
        self._forwards.clear()
        for chain in self._chains.values():
            chain.text.clear()
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take before the context is full."""
        return self._capacity - draft.context_length - len(draft.tree)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the next token of the target's to each chain, and return the drafts that got
        one.
        """
        growing = [draft for draft in drafts if self.room(draft) > 0]
        for draft in growing:
            if draft.request_id not in self._chains or not self._chains[draft.request_id].text:
                self._read(draft)
        ready: dict[str, int] = {}
        waiting = growing
        with self.clock.phase("draft"):
            while waiting:
                ready |= {
                    draft.request_id: token
                    for draft in waiting
                    if (token := self._next(draft)) is not None
                }
                self._end_at_forbidden(waiting, ready)
                chains = [
                    (draft, self._chains[draft.request_id])
                    for draft in waiting
                    if draft.request_id not in ready
                ]
                waiting = [draft for draft, chain in chains if not chain.ended]
                self._forward(waiting)
        grown = [draft for draft in growing if draft.request_id in ready]
        for draft in grown:
            draft.tree.add(
                ready[draft.request_id], draft.tree.last, LookUpDistribution("slem", 1.0), 0
            )
        return grown

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Do nothing: the committed text is read when the next round drafts."""

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        chain = self._chains.pop(session.request.id, None)
        if chain is not None:
            self._runner.release(chain.slot)

    def _end_at_forbidden(self, drafts: Sequence[Draft], ready: dict[str, int]) -> None:
        """End the chains whose next token the request's grammar forbids: the draft model's own
        tokens cannot be masked, since the grammar is that of the target's.
        """
        for draft in drafts:
            token = ready.get(draft.request_id)
            if token is not None and not draft.allows(token, draft.tree.last):
                del ready[draft.request_id]
                self._chains[draft.request_id].ended = True

    def _next(self, draft: Draft) -> int | None:
        """Return the chain's next token of the target if the drafted text settles it; end the chain
        if none comes.
        """
        chain = self._chains[draft.request_id]
        text = chain.text[len(chain.text) - chain.drafted :]
        tokens = self._texts.to_target(draft.session.tokens[-WINDOW:], text)
        given = draft.tree.tokens[1:]
        if (
            tokens[: len(given)] != given
        ):  # the text's further tokens changed how what was drafted is split
            chain.ended = True
        elif len(tokens) > len(given) + (0 if chain.ended else self._settled):
            return tokens[len(given)]
        return None

    def _read(self, draft: Draft) -> None:
        """Read the committed text, and keep in KV what it shares with the text that was read and
        drafted before.
        """
        name = draft.request_id
        if name not in self._chains:
            self._chains[name] = _Chain(self._runner.acquire())
        chain = self._chains[name]
        chain.text, chain.drafted = self._texts.to_draft(draft.session.tokens), 0
        # A text that ends within a character, or that fills the slot, is left to the target.
        chain.ended = not chain.text or len(chain.text) + WINDOW > self._runner.capacity
        if chain.ended:
            return
        pairs = enumerate(zip(chain.held, chain.text[:-1], strict=False))
        shared = next(
            (i for i, (held, read) in pairs if held != read),
            min(len(chain.held), len(chain.text) - 1),
        )
        committed = self._runner.length(chain.slot)
        if shared < committed:
            self._runner.release(chain.slot)
            chain.slot, shared, committed = self._runner.acquire(), 0, 0
        moved = max(shared - WINDOW, committed)
        self._runner.commit(
            chain.slot, range(moved - committed), range(moved - committed, shared - committed)
        )
        chain.held = chain.text[:shared]
        if not shared:
            with self.clock.phase("prefill"):
                self._append([(draft, chain.text[:-1])], "prefill")

    def _forward(self, drafts: Sequence[Draft]) -> None:
        """Draft one token of the draft model's for every request."""
        if not drafts:
            return
        chains = [self._chains[draft.request_id] for draft in drafts]
        rows = [
            (draft, chain.text[len(chain.held) :])
            for draft, chain in zip(drafts, chains, strict=True)
        ]
        for draft, chain, token in zip(drafts, chains, self._append(rows, "draft"), strict=True):
            chain.text.append(token)
            chain.drafted += 1
            spent = chain.drafted >= MOST_PIECES * (draft.tree.last + 1 + self._settled)
            chain.ended = (
                token in self._texts.ends or len(chain.text) >= self._runner.capacity or spent
            )

    def _append(self, rows: Sequence[tuple[Draft, list[int]]], phase: Phase) -> list[int]:
        """Forward tokens of the draft's vocabulary, and return the likeliest one after those of
        each request.
        """
        rows = [(draft, tokens) for draft, tokens in rows if tokens]
        if not rows:
            return []
        chains = [self._chains[draft.request_id] for draft, _ in rows]
        work: dict[str, Row] = {
            draft.request_id: (len(tokens), len(chain.held))
            for chain, (draft, tokens) in zip(chains, rows, strict=True)
        }
        self._forwards.append(Forwarded(DRAFT, phase, work))
        appends = [
            Append(chain.slot, tokens) for chain, (_, tokens) in zip(chains, rows, strict=True)
        ]
        result = self._runner.forward_own(appends)
        refuse_nan(result)
        for chain, (_, tokens) in zip(chains, rows, strict=True):
            chain.held += tokens
        return [token for (token,) in result.argmax()]
