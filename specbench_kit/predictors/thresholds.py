"""Where a predictor's user stops: a rule, and per deployment the threshold and the longest draft chosen for it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nextafter
from typing import Any, Literal, NamedTuple

from specbench_kit.core.errors import SkitError

NEVER = nextafter(1.0, 2.0)
"""A threshold that no probability reaches."""
ScoreKind = Literal["token", "cumulative"]
LOCAL = "local"
"""Time is that of the machine at hand, or of the one that recorded a trace."""


class ThresholdRule(NamedTuple):
    """Whether the token that a draft stops at is sent, and what the threshold is for: its score, or the product of all.

    The default is WISP's.
    """

    send_last: bool = False
    score: ScoreKind = "token"

    @property
    def options(self) -> str:
        """As options of the method; those that are WISP's are left out."""
        given = {"send_last=true": self.send_last, "score=cumulative": self.score == "cumulative"}
        return ",".join(text for text, differs in given.items() if differs)


PUBLISHED_RULE = ThresholdRule()
THRESHOLD_RULES = (
    PUBLISHED_RULE,
    ThresholdRule(score="cumulative"),
    ThresholdRule(send_last=True),
    ThresholdRule(send_last=True, score="cumulative"),
)


class DeploymentKey(NamedTuple):
    """Whose time counts: a deployment by name, and a digest of every number that its time depends on."""

    name: str = LOCAL
    digest: str = ""


LOCAL_DEPLOYMENT = DeploymentKey()


@dataclass(frozen=True, slots=True)
class TunedThreshold:
    """What was chosen for a rule at a place; `digest` is the place's."""

    deployment: str
    digest: str
    send_last: bool
    score: ScoreKind
    threshold: float
    max_draft: int

    @property
    def rule(self) -> ThresholdRule:
        """What it was chosen for."""
        return ThresholdRule(self.send_last, self.score)

    def deployment_label(self, here: DeploymentKey) -> str:
        """The name of where it was chosen; as seen from a place of that name and other numbers, with a remark."""
        changed = self.deployment == here.name and self.digest not in ("", here.digest)
        return f"{self.deployment} with other values" if changed else self.deployment

    def check(self) -> None:
        """A SkitError where a value makes no sense."""
        kinds = {"deployment": str, "digest": str, "send_last": bool, "threshold": float, "max_draft": int}
        wrong = [name for name, kind in kinds.items() if type(getattr(self, name)) is not kind]
        fits = not wrong and 0 <= self.threshold <= NEVER and self.max_draft >= 1
        if not fits or self.score not in ("token", "cumulative"):
            raise SkitError(f"an operating point of a predictor makes no sense: {asdict(self)}")


def closest_threshold(
    points: Sequence[TunedThreshold], rule: ThresholdRule, place: DeploymentKey, otherwise: TunedThreshold
) -> TunedThreshold:
    """The point of a rule at a place, or at one of that name, or where `otherwise` was chosen; else that itself."""
    fitting = [point for point in points if point.rule == rule]
    wanted = (
        lambda point: (point.deployment, point.digest) == place,
        lambda point: point.deployment == place.name,
        lambda point: point.deployment == otherwise.deployment,
    )
    return next((point for fits in wanted for point in fitting if fits(point)), otherwise)


def read_thresholds(found: Any) -> tuple[TunedThreshold, ...]:
    """From what `predictor.json` holds."""
    points = tuple(TunedThreshold(**fields) for fields in found)
    for point in points:
        point.check()
    return points
