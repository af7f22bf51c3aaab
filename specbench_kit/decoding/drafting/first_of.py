"""Hybrid drafting: in every round, the first of several drafters that has something to draft."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from torch import Tensor

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.specs import init_fields
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.drafter import Draft, Drafter, Forwarded
from specbench_kit.decoding.drafting.base import (
    DRAFT,
    Capability,
    DrafterParts,
    Drafting,
    drafters,
    parse_drafter,
)
from specbench_kit.decoding.drafting.chains import ChainDrafter
from specbench_kit.decoding.drafting.look_up import LookUp
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.latency import LatencyModel, Row
from specbench_kit.decoding.session import Session
from specbench_kit.models.draft_library import AUTO, named

if TYPE_CHECKING:
    from specbench_kit.models.runner import Runner

NONE = "none"
MATCH = "min"
"""The option of look-ups that says how long a match has to be, of those that look for one."""
HEAD = "head"
MODEL = "model"


@drafters.register("first-of")
@dataclass(frozen=True)
class FirstOfDrafting(Drafting):
    """In every round a request's draft comes from the first member that has a token for it, in
    order of trust.

    A look-up drafts if at least `match` tokens match, a head once the target has processed the prompt, and a model
    always. A member is the name of such a drafter, `auto` (the target's own head, else the draft model, else none) or
    `none`; options follow a member's name after a dot and are joined by `:`. Each round's draft is verified as one of
    the member that made it. The tokens of `prompt-lookup`, which estimates no probabilities, count as certain.
    """

    first: str = "suffix"
    second: str = AUTO
    third: str = NONE
    match: int = 2
    capability = Capability.PROBABILITIES
    recordable = True

    def __post_init__(self) -> None:
        kind = self.display_name
        require(self.match >= 1, f"{kind}: match must be at least 1, not {self.match}")
        names = [member.display_name for member in self.members]
        require(bool(names), f"{kind}: all members are none: name at least one drafter")
        for member in self.members:
            if member.display_name not in (HEAD, MODEL) and not isinstance(member, LookUp):
                raise SkitError(
                    f"{kind}: '{member.display_name}' cannot be a member: name a look-up, head or model"
                )
        require(
            len(set(names)) == len(names), f"{kind}: members must differ, not {', '.join(names)}"
        )

    @property
    def members(self) -> Sequence[Drafting]:
        return [
            self._member(name) for name in (self.first, self.second, self.third) if name != NONE
        ]

    @property
    def depends_on_order(self) -> bool:
        return any(member.depends_on_order for member in self.members)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(name for member in self.members for name in member.models)

    def resolved(self, exists: Callable[[str], bool]) -> Self:
        chosen = HEAD if exists(named(AUTO)) else MODEL if exists(DRAFT) else NONE
        first, second, third = (
            chosen if name == AUTO else name for name in (self.first, self.second, self.third)
        )
        return replace(self, first=first, second=second, third=third)

    def source(self, parts: DrafterParts) -> "FirstOfDrafter":
        return FirstOfDrafter(self.display_name, self.sources(parts), parts.clock)

    def sources(self, parts: DrafterParts) -> "list[Member]":
        """Return the drafters of all members, in order of trust."""
        return [Member(member.display_name, member.source(parts)) for member in self.members]

    def layers(self, models: "Mapping[str, Runner]") -> Sequence[int]:
        return [layer for member in self.members for layer in member.layers(models)]

    def latencies(self, draft: LatencyModel) -> Mapping[str, LatencyModel]:
        return {member.display_name: member.latency(draft) for member in self.members}

    def _member(self, name: str) -> Drafting:
        member = parse_drafter(HEAD if name == AUTO else name, separator=":")
        return (
            replace(member, min=max(member.min, self.match))
            if isinstance(member, LookUp)
            and MATCH in {each.name for each in init_fields(type(member))}
            else member
        )


@dataclass
class Member:
    """A drafter with its own drafts of this round, which its tokens are copied from."""

    name: str
    drafter: Drafter
    drafts: dict[str, Draft] = field(default_factory=dict)
    """By request; empty trees for the requests that another member drafts for."""
    forwards: list[Forwarded] = field(default_factory=list)
    """What it has computed since this list was read."""

    def __post_init__(self) -> None:
        self.is_model = isinstance(self.drafter, ModelDrafter)
        """True of a model or head, whose tokens take a forward each."""
        self.reads_states = self.is_model and self.name == HEAD
        """True of a head, which reads the target's hidden states in place of the prompt."""
        if isinstance(self.drafter, ModelDrafter):
            self.drafter.on_forward = self._note

    def begin(self, sessions: Sequence[Session]) -> None:
        """Start a round."""
        self.forwards.clear()
        self.drafts = {draft.request_id: draft for draft in self.drafter.begin(sessions)}

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append the member's next token to each chain, and return the drafts that got one."""
        if not drafts:
            return []
        ahead_ids = {draft.request_id for draft in drafts if self._is_ahead(draft)}
        behind = [draft for draft in drafts if draft.request_id not in ahead_ids]
        grown_ids = ahead_ids | {draft.request_id for draft in self.look_ahead(behind)}
        grown = [draft for draft in drafts if draft.request_id in grown_ids]
        for draft in grown:
            own = self.drafts[draft.request_id].tree
            draft.tree.add(own.tokens[own.last], draft.tree.last, *own.source(own.last))
            draft.tree.drafter = self.name
        if grown and not self.is_model:
            self.forwards.append(Forwarded(self.name, "draft", dict.fromkeys(grown_ids, (1, 0))))
        return grown

    def look_ahead(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Draft the member's next token without appending it to the chains, and return the drafts
        for which there is one.
        """
        if not drafts:
            return []
        own_drafts = [self.drafts[draft.request_id] for draft in drafts]
        grown_ids = {own.request_id for own in self.drafter.extend(own_drafts)}
        return [draft for draft in drafts if draft.request_id in grown_ids]

    def next_probability(self, draft: Draft) -> float:
        """Return the member's own probability of the token that it looked ahead to."""
        own = self.drafts[draft.request_id].tree
        return own.probability(own.last)

    def _is_ahead(self, draft: Draft) -> bool:
        return len(self.drafts[draft.request_id].tree) > len(draft.tree)

    def _note(self, phase: Phase, rows: Mapping[str, Row]) -> None:
        """Note a forward of a model."""
        assert isinstance(self.drafter, ModelDrafter)
        skips = self.drafter.skips
        # As for any drafter, the time counts the whole text, of which a head forwards all but its
        # first token.
        if phase == "prefill":
            counted = {name: (new + skips, cached) for name, (new, cached) in rows.items()}
        else:
            counted = {name: (new, cached + skips) for name, (new, cached) in rows.items()}
        self.forwards.append(Forwarded(self.name, phase, counted))


class FirstOfDrafter(ChainDrafter):
    """Drafts chains, each by the first member that had a token for it when its round's first token
    was wanted.

    All members learn of all rounds: a look-up reads the text, a head is given the target's hidden
    states of all committed tokens, and a model or head forwards the tokens that its KV lacks when
    it drafts again.
    """

    def __init__(self, name: str, members: Sequence[Member], clock: Clock) -> None:
        super().__init__(name, clock)
        self._members = members
        self._sources: dict[str, Member] = {}
        """The members that draft in this round, by request, as far as the first token was
        drafted.
        """

    def forwards(self) -> Sequence[Forwarded]:
        """Return the forwards and look-ups of all members since the last call."""
        forwards = [forwarded for member in self._members for forwarded in member.forwards]
        for member in self._members:
            member.forwards.clear()
        return forwards

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Start a round with empty trees."""
        self._sources.clear()
        for member in self._members:
            member.begin(sessions)
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take, by its member or, before its first
        token, by any.
        """
        name = draft.request_id
        members = [self._sources[name]] if name in self._sources else self._members
        return max(member.drafter.room(member.drafts[name]) for member in members)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append a token to each chain, and return the drafts whose member had one."""
        grown: set[str] = set()
        for member in self._members:
            # A chain stays with the member that began it: tokens of two members could not be
            # verified by one rule.
            own = [
                draft for draft in drafts if self._sources.get(draft.request_id, member) is member
            ]
            for draft in member.extend([draft for draft in own if draft.request_id not in grown]):
                self._sources[draft.request_id] = member
                grown.add(draft.request_id)
        return [draft for draft in drafts if draft.request_id in grown]

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Commit the accepted nodes in the member that drafted them, and give every member the
        hidden states.
        """
        source = self._sources.get(draft.request_id)
        for member in self._members:
            member.drafter.commit(
                member.drafts[draft.request_id], path if member is source else (), None, states
            )

    def release(self, session: Session) -> None:
        """Free what a finished request held in any member."""
        for member in self._members:
            member.drafter.release(session)
