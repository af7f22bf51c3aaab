"""Policies made of other policies: every request's round is left to one of several chain rules."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.methods.base import Capability, Environment, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.clock import Clock
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

RANGE = re.compile(r"(.+=)(\d+)\.\.(\d+)")


def arm_specs(text: str) -> list[str]:
    """`svip+fixed-k.k=1..2+threshold.threshold=0.3+max_draft=4` one by one, ranges written out."""
    found: list[str] = []
    for piece in text.split("+"):
        if "=" in piece and "." not in piece.partition("=")[0] and found:
            found[-1] += f"+{piece}"
            continue
        span = RANGE.fullmatch(piece)
        found += [f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1)] if span else [piece]
    return found


def parse_arm(owner: str, spec: str) -> Method:
    """The chain rule that an arm names."""
    name, _, tail = spec.partition(".")
    rule = from_options(name, methods.get(name), tail, separator="+")
    is_chain = (
        rule.required_capability < Capability.TREES
        and rule.pipeline is None
        and not rule.overlaps
        and not rule.needs_reference
    )
    require(is_chain, f"{owner}: '{name}' cannot be an arm: arms are rules that draft chains by what the draft says")
    return rule


@dataclass(frozen=True)
class Composed(Method):
    """A method that leaves each round to one of its arms; `arms` as in `svip+fixed-k.k=1..4+threshold.max_draft=8`."""

    rules: tuple[Method, ...] = field(default=(), init=False, repr=False, kw_only=True)
    """What the arms name."""

    def take_arms(self, arms: str) -> None:
        """Read the arms, which have to draft in one way."""
        specs = arm_specs(arms)
        require(len(specs) > 1, f"{self.display_name}: arms must be two or more, as in svip+fixed-k.k=4")
        repeated = [spec for spec in specs if specs.count(spec) > 1]
        require(not repeated, f"{self.display_name}: the arm {(repeated or specs)[0]} is named twice")
        self._set_rules(tuple(parse_arm(self.display_name, spec) for spec in specs))
        object.__setattr__(self, "required_capability", max(rule.required_capability for rule in self.rules))
        drawing = {rule.proposal for rule in self.rules if rule.uses_drafter}
        if len(drawing) > 1:
            raise SkitError(
                f"{self.display_name}: of its arms some draw tokens and some take the likeliest: name one kind"
            )
        object.__setattr__(self, "proposal", next(iter(drawing), "sample"))

    def prepare(self, environment: Environment) -> Method:
        ready = copy(self)
        ready._set_rules(tuple(rule.prepare(environment) for rule in self.rules))
        return ready

    @property
    def trained_on(self) -> frozenset[str]:
        return frozenset().union(*(rule.trained_on for rule in self.rules))

    @property
    def trained_on_reserved(self) -> bool:
        return any(rule.trained_on_reserved for rule in self.rules)

    @property
    def decision_s(self) -> float:
        return max(rule.decision_s for rule in self.rules)

    def uses(self) -> Mapping[str, object]:
        found = [dict(rule.uses()) for rule in self.rules]
        return {"arms": found} if any(found) else {}

    def policies(self) -> list[Policy]:
        """A fresh policy of every arm."""
        made = [rule.policy() for rule in self.rules]
        return [policy for policy in made if isinstance(policy, Policy)]

    def _set_rules(self, rules: tuple[Method, ...]) -> None:
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "learned", any(rule.learned for rule in rules))


@dataclass
class ArmDrafter:
    """Some of a drafter's requests, whose chains may have at most `longest` tokens."""

    whole: "Drafter"
    drafts: "list[Draft]"
    longest: int

    @property
    def clock(self) -> "Clock":
        return self.whole.clock

    def awaits_answer(self, draft: "Draft") -> bool:
        return self.whole.awaits_answer(draft)

    def room(self, draft: "Draft") -> int:
        return min(self.whole.room(draft), self.longest - draft.tree.last)

    def extend(self, drafts: "Sequence[Draft]") -> "list[Draft]":
        short = [draft for draft in drafts if draft.tree.last < self.longest]
        return self.whole.extend(short) if short else []

    def expand(self, frontier: "Sequence[tuple[Draft, Sequence[int]]]") -> "DraftForward":
        return self.whole.expand(frontier)


class ArmsPolicy(Policy):
    """Plays an arm per scope, which is a request or all of them together, and is told what came of it."""

    def __init__(self, policies: Sequence[Policy], longest: int, *, shared: bool) -> None:
        self.policies, self.longest, self.shared = policies, longest, shared
        self.played: dict[str, int] = {}
        """This round's arms, by request."""

    def draft(self, drafter: "Drafter") -> None:
        arms = {scope: self.pick(scope) for scope in {self.scope(draft.request_id): None for draft in drafter.drafts}}
        self.played = {draft.request_id: arms[self.scope(draft.request_id)] for draft in drafter.drafts}
        for arm, drafts in self._by_arm(drafter.drafts):
            self.policies[arm].draft(ArmDrafter(drafter, drafts, self.longest))  # type: ignore[arg-type]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        chosen: dict[str, list[int]] = {}
        for arm, own in self._by_arm(drafts):
            names = [draft.request_id for draft in own]
            chosen.update(zip(names, self.policies[arm].choose(own), strict=True))
        return [chosen[draft.request_id] for draft in drafts]

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        of = {verdict.draft.request_id: verdict for verdict in verdicts}
        for arm, own in self._by_arm([verdict.draft for verdict in verdicts]):
            self.policies[arm].observe([of[draft.request_id] for draft in own])
        scopes: dict[str, list[Verdict]] = {}
        for verdict in verdicts:
            scopes.setdefault(self.scope(verdict.draft.request_id), []).append(verdict)
        for scope, own_verdicts in scopes.items():
            self.learn(scope, self.played[own_verdicts[0].draft.request_id], own_verdicts)

    def forget(self, request_id: str) -> None:
        for policy in self.policies:
            policy.forget(request_id)

    def scope(self, request_id: str) -> str:
        """Whose experience a request shares."""
        return "" if self.shared else request_id

    @abstractmethod
    def pick(self, scope: str) -> int:
        """The arm to play."""

    @abstractmethod
    def learn(self, scope: str, arm: int, verdicts: "Sequence[Verdict]") -> None:
        """What came of an arm that was played."""

    def _by_arm(self, drafts: "Sequence[Draft]") -> "Iterator[tuple[int, list[Draft]]]":
        for arm in range(len(self.policies)):
            own = [draft for draft in drafts if self.played[draft.request_id] == arm]
            if own:
                yield arm, own
