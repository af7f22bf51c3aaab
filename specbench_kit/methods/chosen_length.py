"""Policies that choose one draft length for the batch, by an acceptance rate that is given or
learned.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import Policy, expected_accepted

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict

PRIOR_TOKENS = 10.0
"""The number of verified tokens that the initial acceptance rate counts as."""


class AcceptanceRate:
    """The probability that a drafted token is accepted if all before it are, over the recent rounds
    of all requests.

    Rounds lose the share `forget` of their weight with each later round. Tokens after a rejection
    do not count.
    """

    def __init__(self, initial: float, forget: float) -> None:
        self.forget = forget
        self.accepted = initial * PRIOR_TOKENS
        self.tested = PRIOR_TOKENS

    @property
    def value(self) -> float:
        """Return the rate, in 0..1."""
        return self.accepted / self.tested

    def learn(self, verdicts: "Sequence[Verdict]") -> None:
        """Add the verdicts of one round; a round that verified nothing changes nothing."""
        accepted = sum(len(verdict.path) for verdict in verdicts)
        rejected = sum(len(verdict.path) < len(verdict.submitted) for verdict in verdicts)
        if accepted + rejected:
            self.accepted = (1 - self.forget) * self.accepted + accepted
            self.tested = (1 - self.forget) * self.tested + accepted + rejected


def expected_tokens(acceptance: float, length: int) -> float:
    """Return the expected committed tokens of a draft of this length, with the target's own."""
    return 1 + expected_accepted(repeat(acceptance, length))


class ChosenLengthPolicy(Policy):
    """A policy that drafts a chain of one length for every request of the batch, and learns the
    acceptance rate.
    """

    def __init__(self, acceptance: AcceptanceRate) -> None:
        self.acceptance = acceptance
        self.assumed_acceptance = acceptance.value
        """The acceptance rate by which the length of this round was chosen."""

    def draft(self, drafter: "Drafter") -> None:
        self.assumed_acceptance = self.acceptance.value
        for _ in range(self.length_for(drafter)):
            drafter.extend(drafter.drafts)

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted([self.assumed_acceptance] * len(nodes))

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        self.acceptance.learn(verdicts)

    @abstractmethod
    def length_for(self, drafter: "Drafter") -> int:
        """Return the number of tokens to draft for each request."""
