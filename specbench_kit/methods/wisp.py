"""Stop at the first token that a learned predictor expects the target to reject."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Chains, Environment, Method, Policy, StopRule, methods, require
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.predictor_choice import PREDICTOR, find_predictor
from specbench_kit.predictors.thresholds import DeploymentKey, ScoreKind, ThresholdRule, TunedThreshold

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.predictors.artefact import Predictor


@methods.register("wisp")
@dataclass(frozen=True)
class Wisp(Method):
    """Stop at the first token that a learned predictor expects the target to reject; as published, it is not sent.

    `send_last` sends it after all. `score=cumulative` stops where the chance that all tokens so far are accepted, the
    product of their scores, falls below the threshold, instead of the token's own chance.
    `predictor` is a name or family that `skit list predictors` shows, or a folder that `skit train-predictor` made,
    with a separator (`./mine`), or auto for the best one known for the pair. It has a threshold and a longest draft
    for every rule and deployment that it was tuned for; `operating_point` and `max_draft` replace them. `force` uses a
    predictor on a pair that it was not trained for.
    """

    predictor: str = "auto"
    max_draft: int | None = None
    operating_point: float | None = None
    send_last: bool = False
    score: ScoreKind = "token"
    force: bool = False
    source = "WISP, Li et al. 2025"
    reported_result = "serves 1.69 to 2.10 times as many devices as centralized decoding"
    group = "learned"
    grid = MappingProxyType(
        {
            "send_last": (False, True),
            "score": ("token", "cumulative"),
            "operating_point": (0.2, 0.3, 0.4, 0.5, 0.6),
            "max_draft": (3, 5, 8),
        }
    )
    needs = PREDICTOR
    learned = True

    def __post_init__(self) -> None:
        drafts = self.max_draft is None or self.max_draft >= 1
        require(drafts, f"wisp: max_draft must be at least 1, not {self.max_draft}")
        fits = self.operating_point is None or 0 <= self.operating_point <= 1
        require(fits, f"wisp: operating_point must lie in 0..1, not {self.operating_point}")

    def prepare(self, environment: Environment) -> Method:
        from specbench_kit.predictors.artefact import load

        pair = environment.pair
        predictor = load(find_predictor("wisp", self.predictor, pair), pair=pair, force=self.force)
        point = self._own(
            predictor.point(ThresholdRule(self.send_last, self.score), environment.place), environment.place
        )
        made = _PreparedWisp if point.threshold else _UndecidedWisp
        return made(self, predictor, point, environment.place, drafter=self.drafter)

    def _own(self, point: TunedThreshold, place: DeploymentKey) -> TunedThreshold:
        """The point with what the options say."""
        if self.operating_point is not None:
            longest = point.max_draft
            point = TunedThreshold(place.name, place.digest, self.send_last, self.score, self.operating_point, longest)
        return point if self.max_draft is None else replace(point, max_draft=self.max_draft)

    def policy(self) -> Policy:
        raise SkitError("wisp needs a predictor for the pair: call prepare first")


@dataclass(frozen=True)
class _PreparedWisp(Method):
    options: Wisp
    predictor: "Predictor"
    point: TunedThreshold
    place: DeploymentKey
    display_name = Wisp.display_name
    learned = True

    @property
    def trained_on(self) -> frozenset[str]:
        return self.predictor.prompts

    @property
    def trained_on_reserved(self) -> bool:
        return self.predictor.trained_on_reserved

    @property
    def decision_s(self) -> float:
        return self.predictor.decision_s

    def uses(self) -> Mapping[str, Any]:
        point, names = self.point, ("family", "created", "decision_s", "decision_origin")
        found = {name: getattr(self.predictor, name) for name in names}
        found |= {
            "threshold": point.threshold,
            "max_draft": point.max_draft,
            "deployment": point.deployment_label(self.place),
        }
        meant = point.rule == ThresholdRule(self.options.send_last, self.options.score)
        return {"predictor": found if meant else {**found, "rule": point.rule.options or "the rule as published"}}

    def policy(self) -> Policy:
        return _WispPolicy(self.options, self.predictor, self.point)


@dataclass(frozen=True)
class _UndecidedWisp(_PreparedWisp):
    """Where every token passes there is nothing to decide, and no score is worth its time."""

    learned = False

    def policy(self) -> Policy:
        return FixedK(self.point.max_draft).policy()


class _WispPolicy(Policy):
    def __init__(self, options: Wisp, predictor: "Predictor", point: TunedThreshold) -> None:
        self.predictor, self.threshold, self.max_draft = predictor, point.threshold, point.max_draft
        self.keeps_back, self.cumulative = not options.send_last, options.score == "cumulative"
        self.chances: defaultdict[str, list[float]] = defaultdict(list)
        """By request, the chance of each token of its draft where those before it are accepted."""
        self.scored: tuple[Chains, NDArray[np.float64]] | None = None
        """The chains that were scored last, and their scores."""
        self.probes: set[str] = set()
        """Requests whose newest token is kept back."""

    @property
    def stop_rule(self) -> StopRule:
        return StopRule(self.max_draft, self._stops, not self.keeps_back, self._scores)

    def draft(self, drafter: "Drafter") -> None:
        self.probes.clear()
        self.chances.clear()
        live = drafter.drafts
        for _ in range(self.max_draft):
            live = [draft for draft in drafter.extend(live) if self._goes_on(draft)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(range(1, len(draft.tree) - (1 if draft.request_id in self.probes else 0))) for draft in drafts]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(self.chances[draft.request_id][: len(nodes)])

    def _scores(self, chains: Chains) -> "NDArray[np.float64]":
        """Both that ask for them have the same chains."""
        if self.scored is None or self.scored[0] is not chains:
            self.scored = chains, self.predictor.score_chains(chains.statistics)
        return self.scored[1]

    def _stops(self, chains: Chains) -> "NDArray[np.bool_]":
        scores = self._scores(chains)
        if self.cumulative:
            scores = scores.cumprod(axis=1)
        return ~(scores >= self.threshold)

    def _goes_on(self, draft: "Draft") -> bool:
        chances = self.chances[draft.request_id]
        chances.append(draft.tree.score(draft.tree.last, self.predictor))
        goes_on = (prod(chances) if self.cumulative else chances[-1]) >= self.threshold
        if self.keeps_back and not goes_on:
            self.probes.add(draft.request_id)
        return goes_on
