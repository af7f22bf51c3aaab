"""A method whose policy breaks a rule of the engine: what a failing one costs the others."""

from dataclasses import dataclass

import pytest

from specbench_kit.decoding.drafter import Drafter
from specbench_kit.methods.base import Method, Policy, methods


@dataclass(frozen=True)
class Breaking(Method):
    """Reads the probability of a token that it never drafted, for requests whose id ends with `request`."""

    request: str = "3"
    source = "test"

    def policy(self) -> Policy:
        return _BreakingPolicy(self.request)


class _BreakingPolicy(Policy):
    def __init__(self, request: str) -> None:
        self._request = request

    def draft(self, drafter: Drafter) -> None:
        for draft in drafter.drafts:
            if draft.request_id.endswith(self._request):
                draft.tree.probability(0)
        drafter.extend(drafter.drafts)


def add_breaking() -> None:
    """Make the method known to this process until its end."""
    methods._entries = dict(methods.all()) | {"breaking": Breaking}


def add_breaking_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the method known to one test."""
    monkeypatch.setattr(methods, "_entries", dict(methods.all()) | {"breaking": Breaking})
