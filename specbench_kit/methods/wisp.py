"""Stop at the first token that a learned predictor expects the target to reject."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.policy import expected_accepted
from specbench_kit.methods.base import (
    Chains,
    Environment,
    Method,
    MethodInputs,
    Policy,
    StopRule,
    methods,
    require,
)
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.predictor_based import PREDICTOR, PreparedWithPredictor, load_predictor
from specbench_kit.predictors.thresholds import (
    DeploymentKey,
    ScoreKind,
    ThresholdRule,
    TunedThreshold,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.predictors.artefact import Predictor


@methods.register("wisp")
@dataclass(frozen=True)
class Wisp(Method):
    """Stop at the first token that a learned predictor expects the target to reject; as published,
    it is not sent.

    `send_last` sends it after all. `score=cumulative` compares the product of the scores of all tokens so far with the
    threshold, instead of the newest token's score.
    `predictor` is a name or family that `skit list predictors` shows, a folder that `skit train-predictor` wrote (with
    a separator, as in `./mine`), or `auto` for the best one of the pair. It has a threshold and a longest draft for
    every rule and deployment that it was tuned for; `operating_point` (0..1) and `max_draft` (tokens) replace them.
    `force` uses a predictor on a pair that it was not trained for.
    """

    predictor: str = "auto"
    max_draft: int | None = None
    operating_point: float | None = None
    send_last: bool = False
    score: ScoreKind = "token"
    force: bool = False
    source = "WISP, Li et al. 2026 (arXiv 2601.11652)"
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
        predictor = load_predictor("wisp", self.predictor, environment.pair, force=self.force)
        rule = ThresholdRule(self.send_last, self.score)
        deployment = environment.deployment
        tuned = predictor.threshold_at(rule, deployment)
        max_draft = self.max_draft or tuned.max_draft
        if self.operating_point is not None:
            tuned = TunedThreshold(*deployment, *rule, self.operating_point, max_draft)
        else:
            tuned = TunedThreshold(
                tuned.deployment,
                tuned.digest,
                *tuned.rule,
                threshold=tuned.threshold,
                max_draft=max_draft,
            )
        # At threshold 0 every token passes: there is nothing to decide, and computing scores would
        # waste time.
        prepared = _PreparedWisp if tuned.threshold else _UndecidedWisp
        return prepared(predictor, rule, tuned, deployment, drafter=self.drafter)

    def policy(self) -> Policy:
        raise SkitError("wisp needs a predictor for the pair: call prepare first")


@dataclass(frozen=True)
class _PreparedWisp(PreparedWithPredictor):
    rule: ThresholdRule
    tuned: TunedThreshold
    deployment: DeploymentKey
    display_name = Wisp.display_name

    def uses(self) -> MethodInputs:
        names = ("family", "created", "sha256", "decision_s", "decision_origin")
        facts = {name: getattr(self.predictor, name) for name in names} | {
            "threshold": self.tuned.threshold,
            "max_draft": self.tuned.max_draft,
            "deployment": self.tuned.deployment_label(self.deployment),
        }
        if self.tuned.rule != self.rule:
            facts["rule"] = self.tuned.rule.options or "the rule as published"
        return {"predictor": facts}

    def policy(self) -> Policy:
        return _WispPolicy(self.predictor, self.rule, self.tuned)


@dataclass(frozen=True)
class _UndecidedWisp(_PreparedWisp):
    """WISP with a threshold that every token passes: a fixed draft length."""

    learned = False
    display_name = Wisp.display_name

    def policy(self) -> Policy:
        return FixedK(self.tuned.max_draft).policy()


class _WispPolicy(Policy):
    def __init__(self, predictor: "Predictor", rule: ThresholdRule, tuned: TunedThreshold) -> None:
        self.predictor = predictor
        self.rule = rule
        self.threshold = tuned.threshold
        self.max_draft = tuned.max_draft
        self.scores: defaultdict[str, list[float]] = defaultdict(list)
        """By request, the score of each token of its draft: its chance if the tokens before it are
        accepted.
        """
        self.last_scored: tuple[Chains, NDArray[np.float64]] | None = None
        """The chains that were scored last, and their scores."""
        self.kept_back: set[str] = set()
        """Requests whose newest token is not sent."""

    @property
    def stop_rule(self) -> StopRule:
        return StopRule(
            self.max_draft,
            lambda chains: ~self.rule.passes(self._score_chains(chains), self.threshold),
            self.rule.send_last,
            self._score_chains,
        )

    def draft(self, drafter: "Drafter") -> None:
        self.kept_back.clear()
        self.scores.clear()
        live = drafter.drafts
        for _ in range(self.max_draft):
            live = [draft for draft in drafter.extend(live) if self._passes(draft)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [
            list(range(1, len(draft.tree) - (draft.request_id in self.kept_back)))
            for draft in drafts
        ]

    def expects(self, draft: "Draft", nodes: Sequence[int]) -> float:
        return expected_accepted(self.scores[draft.request_id][: len(nodes)])

    def _score_chains(self, chains: Chains) -> "NDArray[np.float64]":
        # A replay asks for stops and for chances with the same chains: they are scored once.
        if self.last_scored is None or self.last_scored[0] is not chains:
            self.last_scored = chains, self.predictor.score_chains(chains.statistics)
        return self.last_scored[1]

    def _passes(self, draft: "Draft") -> bool:
        """Score the newest token of a draft; return True if drafting continues after it."""
        import numpy as np

        scores = self.scores[draft.request_id]
        scores.append(draft.tree.score(draft.tree.last, self.predictor))
        passes = bool(self.rule.passes(np.array(scores), self.threshold)[-1])
        if not passes and not self.rule.send_last:
            self.kept_back.add(draft.request_id)
        return passes
