"""What a policy decides to verify says nothing of the tokens drawn: by enumeration of every draw, for every method."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from environments import ENVIRONMENT
from method_specs import filled_in, specs
from two_tokens import DEPTH, Output, TwoTokenDrafter, after, exact_outputs, play

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.policy import Policy
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.methods.spec import parse_method

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter

NAMES = ("a", "b")


def draft_chance(name: str, prefix: tuple[int, ...]) -> float:
    """Sure at some places and not at others, so that what is drawn decides how sure the next draw is."""
    table = {"a": (0.6, 0.95, 0.3, 0.8), "b": (0.85, 0.55, 0.97, 0.1)}
    return table[name][(len(prefix) + 3 * sum(prefix)) % 4]


def target_chance(name: str, prefix: tuple[int, ...]) -> float:
    table = {"a": (0.3, 0.7, 0.5, 0.9), "b": (0.5, 0.2, 0.75, 0.4)}
    return table[name][(2 * len(prefix) + sum(prefix)) % 4]


def plan_checked(policy: Policy, drafter: TwoTokenDrafter) -> list[list[int]]:
    return CheckedPolicy(policy, "tried", drafter.clock).plan(drafter)


def plan_unchecked(policy: Policy, drafter: TwoTokenDrafter) -> list[list[int]]:
    policy.draft(drafter)
    return policy.choose(drafter.drafts)


ROUNDS = [spec for spec in specs() if parse_method(spec).pipeline is None]
# A tree of drawn tokens and a chain from distributions of the policy's own are verified whole, and enumerated in
# tests/decoding/test_drawn_rules.py.
DRAWING = [
    spec
    for spec in ROUNDS
    if parse_method(spec).drafting.models
    and not parse_method(spec).needs_reference
    and not parse_method(spec).verification.endswith("replacement")
    and not parse_method(spec).own_distributions
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return filled_in(tmp_path_factory.mktemp("places"))


@pytest.mark.parametrize("spec", DRAWING)
def test_no_token_decides_about_itself(spec: str, places: dict[str, Path]) -> None:
    """The policy is at the start, or in whatever state some rounds bring it."""
    method = parse_method(spec.format(**places)).prepare(ENVIRONMENT)
    drafter = TwoTokenDrafter(draft_chance, NAMES, drawn=method.proposal == "sample")
    policy, random = round_policy(method), torch.Generator().manual_seed(3)
    for rounds in (0, 5, 25) if drafter.drawn else (0,):
        play(policy, plan_checked, drafter, rounds, random)
        states_found = exact_outputs(policy, plan_checked, drafter, target_chance)
        for name in NAMES if states_found is not None else ():
            expected_shares: Output = {}
            after(target_chance, name, (), 1.0, expected_shares)
            assert states_found is not None
            assert states_found[name] == pytest.approx(expected_shares, abs=1e-9)


@dataclass
class DropsUnlikely(Policy):
    """Wrong on purpose: leaves out a token because of its own probability."""

    def draft(self, drafter: "Drafter") -> None:
        drafter.extend(drafter.drafts)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [[1] if draft.tree.probability(1) >= 0.5 else [] for draft in drafts]


@dataclass
class FreshBudget(Policy):
    """Wrong on purpose: what stands after a token decides whether the token is verified."""

    costs: tuple[float, ...] = (10.0, 17.0, 20.0)

    def draft(self, drafter: "Drafter") -> None:
        for _ in range(2):
            drafter.extend(drafter.drafts)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [self._best(draft) for draft in drafts]

    def _best(self, draft: "Draft") -> list[int]:
        first, second = (draft.tree.distribution_stats(node).confidence for node in (1, 2))
        rates = [
            expected / cost
            for expected, cost in zip(
                (1, 1 + first, 1 + first + first * second), self.costs, strict=True
            )
        ]
        return list(range(1, rates.index(max(rates)) + 1))


def _even(_name: str, _prefix: tuple[int, ...]) -> float:
    return 0.5


def _unlike(_name: str, _prefix: tuple[int, ...]) -> float:
    return 0.9


def _surer_after_one(_name: str, prefix: tuple[int, ...]) -> float:
    return 0.6 if not prefix else 0.9 if prefix[0] == 0 else 0.5


@pytest.mark.parametrize(
    ("policy", "draft", "first"),
    [(DropsUnlikely(), _unlike, 0.55), (FreshBudget(), _surer_after_one, 0.70)],
)
def test_enumeration_sees_what_a_biased_policy_does(
    policy: Policy, draft: object, first: float
) -> None:
    """The fixtures: half and half become .55 and .45, or .70 and .30."""
    drafter = TwoTokenDrafter(draft, ("a",), drawn=True)  # type: ignore[arg-type]
    states_found = exact_outputs(policy, plan_unchecked, drafter, _even)
    assert states_found is not None
    assert sum(
        chance for output, chance in states_found["a"].items() if output[0] == 0
    ) == pytest.approx(first)
    assert {len(output) for output in states_found["a"]} == {DEPTH}


@pytest.mark.parametrize("policy", [DropsUnlikely(), FreshBudget()])
def test_a_biased_combination_is_refused_in_one_line(policy: Policy) -> None:
    drafter = TwoTokenDrafter(_surer_after_one, ("a",), drawn=True)
    with pytest.raises(SkitError) as refused:
        exact_outputs(policy, plan_checked, drafter, _even)
    assert str(refused.value) == (
        "tried: token 1 of a draft was left out after its probability or what follows it was read: this would change "
        "the output's distribution. Decide by distribution_stats, or take the most probable tokens with proposal "
        "= 'top'"
    )


@pytest.mark.parametrize("policy", [DropsUnlikely(), FreshBudget()])
def test_the_same_is_allowed_where_nothing_is_drawn(policy: Policy) -> None:
    drafter = TwoTokenDrafter(_surer_after_one, ("a",), drawn=False)
    assert exact_outputs(policy, plan_checked, drafter, _even) is None
