"""Thresholds on a predictor's scores: the rule that applies them, and those tuned for each
deployment.
"""

from collections.abc import Sequence
from math import nextafter
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:  # a list of methods needs no numpy
    import numpy as np
    from numpy.typing import NDArray

NEVER = nextafter(1.0, 2.0)
"""A threshold that no probability reaches."""
ScoreKind = Literal["token", "cumulative"]
LOCAL = "local"
"""The name of the machine at hand, or of the one that recorded a trace, in place of a
deployment's.
"""


class ThresholdRule(NamedTuple):
    """A rule that stops a draft at the first token whose score is below a threshold.

    `send_last` sends that token for verification; otherwise it is kept back. With `score="cumulative"` the product of
    the scores of all tokens up to it is compared in place of its own. The default is the rule that WISP published.
    """

    send_last: bool = False
    score: ScoreKind = "token"

    @property
    def options(self) -> str:
        """Return the rule as options of the method `wisp`, without those that have the published
        value.
        """
        differences = {
            "send_last=true": self.send_last,
            "score=cumulative": self.score == "cumulative",
        }
        return ",".join(text for text, differs in differences.items() if differs)

    def compared(self, scores: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """Return the values that are compared with the threshold, from the scores [..., tokens];
        same shape.
        """
        return scores.cumprod(axis=-1) if self.score == "cumulative" else scores

    def passes(self, scores: "NDArray[np.float64]", threshold: float) -> "NDArray[np.bool_]":
        """Return True for each token [..., tokens] after which drafting continues; False where a
        score is nan.
        """
        return self.compared(scores) >= threshold


PUBLISHED_RULE = ThresholdRule()
THRESHOLD_RULES = (
    PUBLISHED_RULE,
    ThresholdRule(score="cumulative"),
    ThresholdRule(send_last=True),
    ThresholdRule(send_last=True, score="cumulative"),
)


class DeploymentKey(NamedTuple):
    """A deployment's name with a digest of every number that its time depends on; empty for the
    local machine.
    """

    name: str = LOCAL
    digest: str = ""


LOCAL_DEPLOYMENT = DeploymentKey()


OTHER_VALUES = " with other values"
"""What follows the name of a deployment of which some number was another one when a threshold was
tuned.
"""


class TunedThreshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The threshold and the longest draft, in tokens, that were tuned for a rule in a deployment.

    `digest` is that of the deployment's `DeploymentKey` at the time of tuning.
    """

    deployment: str
    digest: str
    send_last: bool
    score: ScoreKind
    threshold: Annotated[float, msgspec.Meta(ge=0, le=NEVER)]
    max_draft: Annotated[int, msgspec.Meta(ge=1)]

    @property
    def rule(self) -> ThresholdRule:
        """Return the rule that it was tuned for."""
        return ThresholdRule(self.send_last, self.score)

    def deployment_label(self, current: DeploymentKey) -> str:
        """Return the deployment's name, with a remark if its numbers differ from those of
        `current`.
        """
        changed = self.deployment == current.name and self.digest not in ("", current.digest)
        return f"{self.deployment}{OTHER_VALUES}" if changed else self.deployment


def closest_threshold(
    tuned: Sequence[TunedThreshold],
    rule: ThresholdRule,
    deployment: DeploymentKey,
    default: TunedThreshold,
) -> TunedThreshold:
    """Return the threshold that was tuned for a rule in the closest deployment.

    That is the same deployment, else one of the same name, else the one of `default`, else
    `default` itself, whose rule may be another one.
    """
    fitting = [entry for entry in tuned if entry.rule == rule]
    conditions = (
        lambda entry: (entry.deployment, entry.digest) == deployment,
        lambda entry: entry.deployment == deployment.name,
        lambda entry: entry.deployment == default.deployment,
    )
    return next((entry for is_close in conditions for entry in fitting if is_close(entry)), default)
