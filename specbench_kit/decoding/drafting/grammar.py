"""Drafts of what a grammar leaves no choice in, without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import DrafterParts, drafters
from specbench_kit.decoding.drafting.look_up import (
    Continuation,
    LookUp,
    LookUpDrafter,
    NoDrafting,
    TextIndex,
)
from specbench_kit.decoding.session import Session

NAME = "grammar"


@drafters.register(NAME)
@dataclass(frozen=True)
class GrammarDrafting(LookUp):
    """Drafts the text that the request's grammar forces, such as the names and brackets of a JSON
    schema, as the tokenizer writes it; under `--constraint` only.

    Where a single token is allowed it is always right. Where several tokens begin the same forced
    text, the target may write it by others. It drafts nothing where the grammar leaves a choice, so
    that it stands best in front of others: `first-of.first=grammar+second=model`.
    """

    min: int = field(default=1, init=False)  # there is no match whose length could matter
    recordable: ClassVar[bool] = False

    @property
    def needs_grammar(self) -> bool:
        return True

    def index(self) -> TextIndex:
        return NoDrafting().index()

    def source(self, parts: DrafterParts) -> "GrammarDrafter":
        return GrammarDrafter(NAME, self.index(), parts.clock, parts.capacity)


class GrammarDrafter(LookUpDrafter):
    """Drafts chains of forced tokens; a chain ends where the grammar leaves a choice."""

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round; raise SkitError for a request that follows no grammar."""
        if any(session.grammar is None for session in sessions):
            raise SkitError(
                f"drafter '{NAME}' drafts what a grammar forces: give --constraint to skit bench, or choose another"
            )
        return super().begin(sessions)

    def _find(self, draft: Draft, path: Sequence[int]) -> Iterator[Continuation]:
        grammar = draft.session.grammar
        tokens = [*path]
        while grammar is not None and (forced := grammar.forced(tokens)):
            yield from map(Continuation, forced)
            tokens += forced
