"""How long the drafter of simulated rounds takes: its own latencies on a deployment, and a
predictor's decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench_kit.decoding.drafting.base import Drafting
from specbench_kit.decoding.latency import LatencyModel, TableModel
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import DRAFTER
from specbench_kit.methods.base import Method


@dataclass(frozen=True, slots=True)
class DrafterCosts:
    """What decides how long a method's drafting takes, besides the deployment.

    `drafting` is its drafter, None for the draft model. With `learned`, a predictor judges every drafted token, for
    `decision_s` seconds where the deployment does not state them.
    """

    drafting: Drafting | None = None
    learned: bool = False
    decision_s: float = 0.0

    def latencies(self, deployment: Deployment) -> Mapping[str, LatencyModel]:
        """Return the latencies of the models that works name, on a deployment's drafting device."""
        draft = deployment.drafter.latency
        if self.drafting is None:
            return {DRAFTER: draft}
        return {DRAFTER: self.drafting.latency(draft), **self.drafting.latencies(draft)}

    def decides_in_s(self, deployment: Deployment) -> float:
        """Return the seconds of one decision on a deployment's drafting device."""
        stated_s = deployment.predictor_s
        return (self.decision_s if stated_s is None else stated_s) if self.learned else 0.0

    def token_s(self, deployment: Deployment) -> float:
        """Return the seconds of drafting a token by the fastest model, behind a short text."""
        seconds = (latency.seconds(((1, 1),)) for latency in self.latencies(deployment).values())
        return min(seconds) / self.tokens_per_forward + self.decides_in_s(deployment)

    @property
    def per_token(self) -> tuple[object, ...]:
        """What these costs are of: two drafters of the same take the same time on any
        deployment.
        """
        kinds = {} if self.drafting is None else self.drafting.latencies(_PROBE)
        own = _PROBE if self.drafting is None else self.drafting.latency(_PROBE)
        return self.tokens_per_forward, self.learned, own, *sorted(kinds.items())

    @property
    def tokens_per_forward(self) -> int:
        """Tokens of a chain that one forward drafts, where no record says which forwards there
        were.
        """
        return 1 if self.drafting is None else self.drafting.tokens_per_forward


_PROBE = TableModel((1.0,))
"""Stands for a draft model's latency."""
DRAFT_MODEL = DrafterCosts()


def costs_of(method: Method) -> DrafterCosts:
    """Return the costs of a method's drafter; a prepared method knows how long its predictor
    takes.
    """
    return DrafterCosts(_own_drafter(method), method.learned, method.decision_s)


def forwards_follow_from_tokens(method: Method) -> bool:
    """Return whether the forwards of a method's drafter follow from how many tokens it drafted."""
    drafting = _own_drafter(method)
    if drafting is None:
        return True
    return not drafting.members and (
        drafting.tokens_per_forward > 1 or not drafting.reports_forwards
    )


def _own_drafter(method: Method) -> Drafting | None:
    """Return a method's drafter, or None for the draft model: the others load libraries that take
    seconds.
    """
    return method.drafting if method.uses_drafter and method.drafter != Method.drafter else None
