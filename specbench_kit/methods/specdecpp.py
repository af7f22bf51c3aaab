"""Stop once the probability that a drafted token is rejected has grown too large."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import Environment, Method, MethodInputs, Policy, methods, require
from specbench_kit.methods.predictor_based import PREDICTOR, PreparedWithPredictor, load_predictor

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.predictors.artefact import Predictor


@methods.register("specdecpp")
@dataclass(frozen=True)
class SpecDecPp(Method):
    """Stop after the token at which the predicted probability of any rejection so far exceeds the
    threshold; send it.

    That probability is 1 minus the product of the predicted acceptances, so the scores of the `predictor`, named as for
    `wisp`, have to be calibrated. `min_draft` to `max_draft` tokens are drafted. The authors' head sees the tokens up
    to the one before, so it judges one token late: `lag=1`. A predictor of the draft distribution sees the newest
    token too, hence no lag by default. No state is kept between rounds.
    """

    predictor: str = "auto"
    threshold: float = 0.3
    min_draft: int = 2
    max_draft: int = 20
    lag: int = 0
    force: bool = False
    source = "SpecDec++, arXiv 2405.19715"
    reported_result = (
        "2.04 to 2.26 times autoregressive decoding, 7 to 11% over a static length, with a predictor that reads the "
        "draft model's hidden states; this method's predictor reads the draft distribution alone, and has no published "
        "result"
    )
    group = "learned"
    grid = MappingProxyType({"threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "max_draft": (3, 5, 8)})
    needs = PREDICTOR
    learned = True

    def __post_init__(self) -> None:
        require(
            0 <= self.threshold <= 1, f"specdecpp: threshold must lie in 0..1, not {self.threshold}"
        )
        require(self.lag in (0, 1), f"specdecpp: lag must be 0 or 1, not {self.lag}")
        ordered = 1 <= self.min_draft <= self.max_draft
        require(
            ordered,
            f"specdecpp: min_draft must lie in 1..max_draft, not {self.min_draft} of {self.max_draft}",
        )

    def prepare(self, environment: Environment) -> Method:
        predictor = load_predictor("specdecpp", self.predictor, environment.pair, force=self.force)
        return _PreparedSpecDecPp(predictor, self, drafter=self.drafter)

    def policy(self) -> Policy:
        raise SkitError("specdecpp needs a predictor for the pair: call prepare first")


@dataclass(frozen=True)
class _PreparedSpecDecPp(PreparedWithPredictor):
    options: SpecDecPp
    display_name = SpecDecPp.display_name

    def uses(self) -> MethodInputs:
        names = ("family", "created", "sha256", "deployment", "decision_s", "decision_origin")
        facts = {name: getattr(self.predictor, name) for name in names}
        return {
            "predictor": {**facts, "expected_calibration_error": self.predictor.calibration_error}
        }

    def policy(self) -> Policy:
        return _SpecDecPpPolicy(self.options, self.predictor)


class _SpecDecPpPolicy(Policy):
    def __init__(self, options: SpecDecPp, predictor: "Predictor") -> None:
        self.options = options
        self.predictor = predictor
        self.scores: defaultdict[str, list[float]] = defaultdict(list)

    def draft(self, drafter: "Drafter") -> None:
        self.scores.clear()
        live = drafter.drafts
        for _ in range(self.options.max_draft):
            live = [draft for draft in drafter.extend(live) if self._continues(draft)]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(self.scores[draft.request_id][: len(nodes)])

    def _continues(self, draft: "Draft") -> bool:
        """Score the newest token; return True while a rejection so far is unlikely enough."""
        scores = self.scores[draft.request_id]
        scores.append(draft.tree.score(draft.tree.last, self.predictor))
        counted = scores[: len(scores) - self.options.lag]
        return len(scores) < self.options.min_draft or 1 - prod(counted) <= self.options.threshold
