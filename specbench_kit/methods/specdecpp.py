"""Stop where the chance that something drafted so far is rejected has grown too large."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Environment, Method, Policy, methods, require
from specbench_kit.methods.predictor_choice import PREDICTOR, find_predictor

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.predictors.artefact import Predictor


@methods.register("specdecpp")
@dataclass(frozen=True)
class SpecDecPp(Method):
    """Stop after the token at which 1 - the product of the predicted acceptances exceeds the threshold; it is sent.

    `predictor` as for wisp: its scores have to be calibrated to be multiplied. At least `min_draft` tokens are drafted.
    The authors' head reads what follows a token and so judges one token later: `lag=1`. It keeps nothing from round to
    round.
    """

    predictor: str = "auto"
    threshold: float = 0.3
    min_draft: int = 2
    max_draft: int = 20
    lag: int = 0
    force: bool = False
    source = "SpecDec++, arXiv 2405.19715"
    reported_result = "2.04 to 2.26 times plain decoding, 7 to 11% over a static length"
    group = "learned"
    grid = MappingProxyType({"threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "max_draft": (3, 5, 8)})
    needs = PREDICTOR
    learned = True

    def __post_init__(self) -> None:
        require(0 <= self.threshold <= 1, f"specdecpp: threshold must lie in 0..1, not {self.threshold}")
        require(self.lag in (0, 1), f"specdecpp: lag must be 0 or 1, not {self.lag}")
        ordered = 1 <= self.min_draft <= self.max_draft
        require(ordered, f"specdecpp: min_draft must lie in 1..max_draft, not {self.min_draft} of {self.max_draft}")

    def prepare(self, environment: Environment) -> Method:
        from specbench_kit.predictors.artefact import load

        pair = environment.pair
        predictor = load(find_predictor("specdecpp", self.predictor, pair), pair=pair, force=self.force)
        return _PreparedSpecDecPp(self, predictor, drafter=self.drafter)

    def policy(self) -> Policy:
        raise SkitError("specdecpp needs a predictor for the pair: call prepare first")


@dataclass(frozen=True)
class _PreparedSpecDecPp(Method):
    options: SpecDecPp
    predictor: "Predictor"
    display_name = SpecDecPp.display_name
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
        names = ("family", "created", "deployment", "decision_s", "decision_origin")
        found = {name: getattr(self.predictor, name) for name in names}
        error = self.predictor.metrics.get("classification", {}).get("expected_calibration_error")
        return {"predictor": {**found, "expected_calibration_error": error}}

    def policy(self) -> Policy:
        return _SpecDecPpPolicy(self.options, self.predictor)


class _SpecDecPpPolicy(Policy):
    def __init__(self, options: SpecDecPp, predictor: "Predictor") -> None:
        self.options, self.predictor = options, predictor
        self.scores: defaultdict[str, list[float]] = defaultdict(list)

    def draft(self, drafter: "Drafter") -> None:
        self.scores.clear()
        live = drafter.drafts
        for _ in range(self.options.max_draft):
            live = [draft for draft in drafter.extend(live) if self._goes_on(draft)]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(self.scores[draft.request_id][: len(nodes)])

    def _goes_on(self, draft: "Draft") -> bool:
        scores = self.scores[draft.request_id]
        scores.append(draft.tree.score(draft.tree.last, self.predictor))
        judged = scores[: len(scores) - self.options.lag]
        return len(scores) < self.options.min_draft or 1 - prod(judged) <= self.options.threshold
