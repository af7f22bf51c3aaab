"""Policies made of other policies: one of several chain rules drafts each round of a request."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.methods.base import (
    Capability,
    Environment,
    Method,
    MethodInputs,
    Policy,
    methods,
    require,
)

if TYPE_CHECKING:
    from specbench_kit.decoding.clock import Clock
    from specbench_kit.decoding.distributions import DraftForward
    from specbench_kit.decoding.drafter import Draft, Drafter, PlannedRound
    from specbench_kit.decoding.verification import Verdict

RANGE = re.compile(r"(.+=)(\d+)\.\.(\d+)")


def arm_specs(text: str) -> list[str]:
    """Return the specs in a list of arms such as
    `svip+fixed-k.k=1..2+threshold.threshold=0.3+max_draft=4`.

    A range is written out, and a part without a method's name is an option of the arm before it.
    """
    specs: list[str] = []
    for piece in text.split("+"):
        if "=" in piece and "." not in piece.partition("=")[0] and specs:
            specs[-1] += f"+{piece}"
            continue
        span = RANGE.fullmatch(piece)
        specs += (
            [f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1)] if span else [piece]
        )
    return specs


def parse_arm(owner: str, spec: str) -> Method:
    """Return the chain rule that an arm names; raise SkitError if the method is not a chain
    rule.
    """
    name, _, tail = spec.partition(".")
    rule = from_options(name, methods.get(name), tail, separator="+")
    drafts_chains = rule.required_capability < Capability.TREES and rule.pipeline is None
    is_chain = drafts_chains and not rule.overlaps and not rule.needs_reference
    require(
        is_chain,
        f"{owner}: '{name}' cannot be an arm: arms are methods that draft chains and read only the draft",
    )
    return rule


@dataclass(frozen=True)
class ArmsMethod(Method):
    """A method in which one of several arms drafts each round; `arms` such as
    `svip+fixed-k.k=1..4+margin`.
    """

    rules: tuple[Method, ...] = field(default=(), init=False, repr=False, kw_only=True)
    """The method of each arm."""

    def take_arms(self, arms: str) -> None:
        """Set the arms; raise SkitError unless they are two or more and all draw tokens, or all
        take the top ones.
        """
        specs = arm_specs(arms)
        require(
            len(specs) > 1, f"{self.display_name}: arms must be two or more, as in svip+fixed-k.k=4"
        )
        repeated = [spec for spec in specs if specs.count(spec) > 1]
        require(
            not repeated, f"{self.display_name}: the arm {(repeated or specs)[0]} is named twice"
        )
        self._set_rules(tuple(parse_arm(self.display_name, spec) for spec in specs))
        object.__setattr__(
            self, "required_capability", max(rule.required_capability for rule in self.rules)
        )
        drawing = {rule.proposal for rule in self.rules if rule.uses_drafter}
        if len(drawing) > 1:
            raise SkitError(
                f"{self.display_name}: some of its arms draw tokens and some take the most probable: "
                "name arms of one kind"
            )
        object.__setattr__(self, "proposal", next(iter(drawing), "sample"))

    def prepare(self, environment: Environment) -> Method:
        ready = copy(self)
        # Each round may have another arm, so none can leave the next rounds to the server.
        bound = replace(environment, server_decodes=False)
        ready._set_rules(tuple(rule.prepare(bound) for rule in self.rules))
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

    def uses(self) -> MethodInputs:
        arms = [dict(rule.uses()) for rule in self.rules]
        return {"arms": arms} if any(arms) else {}

    def policies(self) -> list[Policy]:
        """Return a fresh policy of every arm."""
        policies = [rule.policy() for rule in self.rules]
        return [policy for policy in policies if isinstance(policy, Policy)]

    def _set_rules(self, rules: tuple[Method, ...]) -> None:
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "learned", any(rule.learned for rule in rules))


@dataclass
class ArmDrafter:
    """The drafter that an arm sees: only its own requests, with chains of at most `longest`
    tokens.
    """

    drafter: "Drafter"
    drafts: "list[Draft]"
    longest: int

    @property
    def clock(self) -> "Clock":
        return self.drafter.clock

    def awaits_answer(self, draft: "Draft") -> bool:
        return self.drafter.awaits_answer(draft)

    def has_reached_server(self, draft: "Draft", node: int) -> bool:
        return self.drafter.has_reached_server(draft, node)

    def foresee(self, draft: "Draft", longest: int) -> "Sequence[int] | None":
        return self.drafter.foresee(draft, min(longest, self.longest))

    def fastest_rounds(
        self, draft: "Draft", longest: int, *, server_decodes: bool
    ) -> "Mapping[int, PlannedRound] | None":
        return self.drafter.fastest_rounds(
            draft, min(longest, self.longest), server_decodes=server_decodes
        )

    def room(self, draft: "Draft") -> int:
        return min(self.drafter.room(draft), self.longest - draft.tree.last)

    def extend(self, drafts: "Sequence[Draft]") -> "list[Draft]":
        short = [draft for draft in drafts if draft.tree.last < self.longest]
        return self.drafter.extend(short) if short else []

    def expand(self, frontier: "Sequence[tuple[Draft, Sequence[int]]]") -> "DraftForward":
        return self.drafter.expand(frontier)


class ArmsPolicy(Policy):
    """A policy that plays one arm per scope and learns from the outcome; a scope is one request or
    the whole run.
    """

    def __init__(self, policies: Sequence[Policy], longest: int, *, shared: bool) -> None:
        self.policies = policies
        self.longest = longest
        self.shared = shared
        self.played: dict[str, int] = {}
        """The arm of this round, by request."""

    def draft(self, drafter: "Drafter") -> None:
        scopes = dict.fromkeys(self.scope(draft.request_id) for draft in drafter.drafts)
        arms = {scope: self.pick(scope) for scope in scopes}
        self.played = {
            draft.request_id: arms[self.scope(draft.request_id)] for draft in drafter.drafts
        }
        for arm, drafts in self._by_arm(drafter.drafts):
            self.policies[arm].draft(ArmDrafter(drafter, drafts, self.longest))  # type: ignore[arg-type]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        chosen: dict[str, list[int]] = {}
        for arm, arm_drafts in self._by_arm(drafts):
            request_ids = [draft.request_id for draft in arm_drafts]
            chosen.update(zip(request_ids, self.policies[arm].choose(arm_drafts), strict=True))
        return [chosen[draft.request_id] for draft in drafts]

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        by_request = {verdict.draft.request_id: verdict for verdict in verdicts}
        for arm, arm_drafts in self._by_arm([verdict.draft for verdict in verdicts]):
            self.policies[arm].observe([by_request[draft.request_id] for draft in arm_drafts])
        scopes: dict[str, list[Verdict]] = {}
        for verdict in verdicts:
            scopes.setdefault(self.scope(verdict.draft.request_id), []).append(verdict)
        for scope, scope_verdicts in scopes.items():
            self.learn(scope, self.played[scope_verdicts[0].draft.request_id], scope_verdicts)

    def forget(self, request_id: str) -> None:
        for policy in self.policies:
            policy.forget(request_id)

    def scope(self, request_id: str) -> str:
        """Return the scope whose experience a request shares."""
        return "" if self.shared else request_id

    @abstractmethod
    def pick(self, scope: str) -> int:
        """Return the index of the arm to play."""

    @abstractmethod
    def learn(self, scope: str, arm: int, verdicts: "Sequence[Verdict]") -> None:
        """Learn from the verdicts of an arm that was played."""

    def _by_arm(self, drafts: "Sequence[Draft]") -> "Iterator[tuple[int, list[Draft]]]":
        for arm in range(len(self.policies)):
            arm_drafts = [draft for draft in drafts if self.played[draft.request_id] == arm]
            if arm_drafts:
                yield arm, arm_drafts
