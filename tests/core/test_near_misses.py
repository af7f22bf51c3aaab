"""Misspelt names are found, and helpers that only look like names of the contract are not."""

import pytest

from specbench_kit.core.near_misses import near_misses, words
from specbench_kit.decoding.policy import LevelPolicy, Policy
from specbench_kit.methods.base import Method, methods


class Misspelt(Policy):
    def drafft(self, drafter: object) -> None:
        """Meant to be `draft`."""

    def observ(self, verdicts: object) -> None:
        """Meant to be `observe`."""


# This module names the names, as no module of a plug-in would.
Misspelt.__module__ = "elsewhere"


def ask(policy: "Helped") -> None:
    policy.observed()


class Helped(Policy):
    """Overrides `draft` with a helper of a similar name, and reads others by name, property and text."""

    overlaps: int = 3

    def draft(self, drafter: object) -> None:
        self.drafts(drafter)
        for name in ("chooses",):
            getattr(self, name)

    def drafts(self, drafter: object) -> None:
        """A similar name to a hook that is there."""

    def observed(self) -> None:
        """Called from outside the class."""

    def chooses(self) -> None:
        """Read by its name."""

    def unlike_any_hook(self) -> None:
        """Read by nobody."""

    def _forgets(self) -> None:
        """Private."""


def test_misspelt_hooks_are_found_with_what_is_meant() -> None:
    misses = near_misses(Misspelt, Policy)
    assert misses == {"drafft": "draft", "observ": "observe"}
    assert words(misses) == (
        "'drafft', which nothing reads (did you mean 'draft'?) and 'observ', which nothing reads (did you mean "
        "'observe'?)"
    )


def test_helpers_are_not_taken_for_hooks() -> None:
    assert near_misses(Helped, Policy) == {}


def subclasses(kind: type) -> set[type]:
    return {kind, *(below for child in kind.__subclasses__() for below in subclasses(child))}


@pytest.mark.parametrize("contract", [Method, Policy, LevelPolicy])
def test_no_method_of_the_kit_misspells_anything(contract: type) -> None:
    assert methods.all()
    own = [kind for kind in subclasses(contract) if kind.__module__.startswith("specbench_kit.")]
    assert len(own) > 1
    assert {kind: misses for kind in own if (misses := near_misses(kind, contract))} == {}
