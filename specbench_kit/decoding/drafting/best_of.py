"""Hybrid drafting by what pays: in every round, the members that have brought most tokens per second so far."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, sqrt
from operator import itemgetter
from statistics import median
from typing import ClassVar, NamedTuple

from torch import Tensor

from specbench_kit.core.errors import require
from specbench_kit.decoding.clock import RECENT, Clock
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.base import DrafterParts, drafters
from specbench_kit.decoding.drafting.first_of import FirstOfDrafter, FirstOfDrafting, Member
from specbench_kit.decoding.session import Session

TRIALS = 3
"""Times that something is tried before it is judged: the first time often takes longer than others."""
KEPT = 0.99
"""Part of an experience that is left after every round: what is long ago counts as little known."""
OWN_WEIGHT = 8.0
"""Rounds of the whole run that count as much as as many rounds of the request itself."""
HOPED_FOR = 8.0
"""Tokens of a round that are expected of a source that is hardly known."""
BINS = 4
"""Parts in which the probabilities of looked-up tokens are told apart."""


@drafters.register("best-of")
@dataclass(frozen=True)
class BestOfDrafting(FirstOfDrafting):
    """In every round each request's draft comes from the member, or from none, with which the batch
    has had most tokens per second.

    Counted are the tokens that a member's rounds have committed, in this request and in the run, for a look-up by how
    probable it calls its token, and the seconds of rounds in which the same members drafted, by the run's clock. What
    was seldom tried counts as better by up to `curiosity` tokens a round, so that it is tried again. A draft model that
    has not read a request's prompt in its first round does not draft for it later. Members are named as for `first-of`.
    """

    curiosity: float = 0.5
    recordable: ClassVar[bool] = False  # what is chosen depends on the seconds of a run

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.curiosity >= 0, f"best-of: curiosity must not be negative, but is {self.curiosity}"
        )

    def source(self, parts: DrafterParts) -> "BestOfDrafter":
        return BestOfDrafter(self.display_name, self.sources(parts), parts.clock, self.curiosity)


@dataclass(slots=True)
class Experience:
    """The mean of what was observed, in which old observations count less and less."""

    total: float = 0.0
    weight: float = 0.0
    times: int = 0

    def add(self, value: float) -> None:
        """Add an observation."""
        self.total += value
        self.weight += 1.0
        self.times += 1

    def fade(self) -> None:
        """Let a round pass."""
        self.total *= KEPT
        self.weight *= KEPT


class Source(NamedTuple):
    """Where a draft may come from: a member, and for look-ups a part of the range of
    probabilities.
    """

    member: str
    bin: int = 0


class Gains:
    """What members' drafts have brought so far, and what rounds with them have taken."""

    def __init__(self, curiosity: float) -> None:
        self._curiosity = curiosity
        self._tokens: defaultdict[Source, Experience] = defaultdict(Experience)
        self._own: defaultdict[str, defaultdict[Source, Experience]] = defaultdict(
            lambda: defaultdict(Experience)
        )
        self._seconds: defaultdict[frozenset[str], deque[float]] = defaultdict(
            lambda: deque(maxlen=RECENT)
        )

    def add_tokens(self, request_id: str, source: Source, committed: int) -> None:
        """Add the tokens that a round with a draft of this source has committed."""
        self._tokens[source].add(committed)
        self._own[request_id][source].add(committed)

    def add_round(self, members: Iterable[str], seconds: float) -> None:
        """Add the seconds of a round in which these members drafted."""
        self._seconds[frozenset(members)].append(seconds)

    def fade(self) -> None:
        """Let a round pass."""
        for experiences in (self._tokens, *self._own.values()):
            for experience in experiences.values():
                experience.fade()

    def forget(self, request_id: str) -> None:
        """Forget what belongs to a finished request alone."""
        self._own.pop(request_id, None)

    def tokens(self, request_id: str, source: Source | None) -> float:
        """Return the tokens that a request's next round may bring with a draft of a source, or with
        none.
        """
        if source is None:
            return 1.0
        run = self._tokens[source]
        if run.times < TRIALS:
            return HOPED_FOR
        own = self._own[request_id][source]
        mean = run.total / run.weight
        mean = (OWN_WEIGHT * mean + own.total) / (OWN_WEIGHT + own.weight)
        return mean + self._curiosity / sqrt(run.weight)

    def rate(self, tokens: float, members: Iterable[str]) -> float:
        """Return the tokens per second of a round that brings so many, in which these members
        draft; infinitely many until such rounds were timed.
        """
        seconds = self._seconds[frozenset(members)]
        return inf if len(seconds) < TRIALS else tokens / max(median(seconds), 1e-9)


class BestOfDrafter(FirstOfDrafter):
    """Drafts chains, each by the member with which the batch is fastest by what was seen so far."""

    def __init__(
        self, name: str, members: Sequence[Member], clock: Clock, curiosity: float
    ) -> None:
        super().__init__(name, members, clock)
        self._gains = Gains(curiosity)
        self._chosen: dict[str, Source | None] = {}
        """Of this round, by request, once its first token was asked for."""
        self._joined: set[tuple[str, str]] = set()
        """The requests and members of which the member has read the text."""
        self._began_s = 0.0
        self._is_typical = False
        """False of a round in which a prompt is read, which takes additional time."""

    def begin(self, sessions: Sequence[Session]) -> list[Draft]:
        """Note what the last round has taken, and start a round with empty trees."""
        now_s = self.clock.now_s()
        if self._is_typical:
            self._gains.add_round(
                {member.name for member in self._sources.values()}, now_s - self._began_s
            )
        self._gains.fade()
        self._chosen.clear()
        self._began_s = now_s
        self._is_typical = bool(sessions) and all(session.produced for session in sessions)
        return super().begin(sessions)

    def room(self, draft: Draft) -> int:
        """Return how many tokens the chain can still take: none if it was decided not to draft."""
        if draft.request_id in self._chosen and draft.request_id not in self._sources:
            return 0
        return super().room(draft)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Append a token to each chain, and return the drafts whose member had one."""
        undecided = [draft for draft in drafts if draft.request_id not in self._chosen]
        if undecided:
            self._choose(undecided)
        grown: set[str] = set()
        for member in self._members:
            own = [draft for draft in drafts if self._sources.get(draft.request_id) is member]
            grown |= {draft.request_id for draft in member.extend(own)}
            for draft in own:
                self._note_joined(member, draft)
        for draft in undecided:
            # A head has nothing before the target has read the prompt: no member drafts then.
            if draft.request_id not in grown:
                self._sources.pop(draft.request_id, None)
        return [draft for draft in drafts if draft.request_id in grown]

    def commit(
        self,
        draft: Draft,
        path: Sequence[int],
        root: int | None = None,
        states: Tensor | None = None,
    ) -> None:
        """Commit the accepted nodes, and learn how many they were."""
        source = self._chosen.get(draft.request_id)
        if source is not None and draft.request_id in self._sources:
            self._gains.add_tokens(draft.request_id, source, len(path) + 1)
        super().commit(draft, path, root, states)

    def release(self, session: Session) -> None:
        """Free what a finished request held in any member."""
        super().release(session)
        self._gains.forget(session.request.id)
        self._joined = {pair for pair in self._joined if pair[1] != session.request.id}

    def _choose(self, drafts: Sequence[Draft]) -> None:
        """Decide from which member each request's draft of this round comes, if from any."""
        options = self._options(drafts)
        best: Mapping[str, Source | None] = {}
        reached = -1.0
        for allowed in _subsets([member.name for member in self._members]):
            chosen = {
                name: max(
                    (option for option in each if option[0] is None or option[0].member in allowed),
                    key=itemgetter(1),
                )
                for name, each in options.items()
            }
            rate = self._gains.rate(
                sum(tokens for _, tokens in chosen.values()),
                {source.member for source, _ in chosen.values() if source is not None},
            )
            if rate > reached:
                best = {name: source for name, (source, _) in chosen.items()}
                reached = rate
        members = {member.name: member for member in self._members}
        self._chosen.update(best)
        self._sources.update(
            {name: members[source.member] for name, source in best.items() if source is not None}
        )

    def _options(self, drafts: Sequence[Draft]) -> dict[str, list[tuple[Source | None, float]]]:
        """Return where the draft of each request may come from, with the tokens that a round may
        bring then; None is no draft.
        """
        found = self._look_up(drafts)
        options = {}
        for draft in drafts:
            name = draft.request_id
            sources: list[Source | None] = [None]
            for member in self._members:
                if member.is_model and self._may_draft(member, draft):
                    sources.append(Source(member.name))
                elif name in found and found[name].member == member.name:
                    sources.append(found[name])
            options[name] = [(source, self._gains.tokens(name, source)) for source in sources]
        return options

    def _look_up(self, drafts: Sequence[Draft]) -> dict[str, Source]:
        """Return the first look-up that has a token for each request, of those with any."""
        found: dict[str, Source] = {}
        for member in self._members:
            if member.is_model:
                continue
            left = [draft for draft in drafts if draft.request_id not in found]
            for draft in member.look_ahead(left):
                probability = member.next_probability(draft)
                found[draft.request_id] = Source(
                    member.name, min(int(BINS * probability), BINS - 1)
                )
        return found

    def _may_draft(self, member: Member, draft: Draft) -> bool:
        """Return whether a model has read the request's text, or reads it as cheaply now as
        ever.
        """
        return (
            member.reads_states
            or draft.session.produced == 0
            or (member.name, draft.request_id) in self._joined
        )

    def _note_joined(self, member: Member, draft: Draft) -> None:
        """Note that a model reads a request's text, which makes this round longer than others."""
        if member.is_model and (pair := (member.name, draft.request_id)) not in self._joined:
            self._joined.add(pair)
            self._is_typical = False


def _subsets(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield every choice among the names of members, small ones first."""
    for size in range(len(names) + 1):
        yield from combinations(names, size)
