"""The best stopping criterion over the chances of a predictor, as the rung below the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import Environment, Latencies, Method, MethodInputs, Policy, methods
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.predictor_based import PREDICTOR, PreparedWithPredictor, load_predictor
from specbench_kit.methods.round_costs import draft_s, link_s, verify_s
from specbench_kit.methods.survival import SurvivalPolicy

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict
    from specbench_kit.predictors.artefact import Predictor
    from specbench_kit.predictors.optimal_stopping import RoundSeconds, StoppingRule

SOLVE_EVERY = 50
"""Rounds after which the rule is solved anew; before, it is when the number of rounds has
doubled.
"""


@methods.register("reachable")
@dataclass(frozen=True)
class Reachable(LatencyAware):
    """Stop where one more drafted token is expected to cost more time than it saves, by the chances
    of a predictor.

    A predictor that was trained on other prompts, named as for `wisp`, gives the chance of every
    drafted token. How chances follow each other is counted in the run's own drafts, without their
    outcomes. By dynamic programming over both and the times of the pair, a token is sent, and
    another one drafted, while this raises the expected tokens per second; one token is always
    drafted. This is the best that a rule can do with this predictor, whose time it always pays:
    where the predictor costs more than it tells, a threshold or a fixed length can be faster. In a
    batch every request stops as if the others drafted as many tokens.
    """

    predictor: str = "auto"
    max_draft: int = 12
    force: bool = False
    source = "ours: optimal stopping at the chances of a predictor, as a rung below the oracle"
    group = "bounds"
    is_rung = True
    needs = f"{PREDICTOR}; {LatencyAware.needs}"
    learned = True

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft")

    def prepare(self, environment: Environment) -> Method:
        predictor = load_predictor("reachable", self.predictor, environment.pair, force=self.force)
        return _PreparedReachable(predictor, self.with_latencies(environment), drafter=self.drafter)

    def policy_with(self, latencies: Latencies) -> Policy:
        raise SkitError("reachable needs a predictor for the pair: call prepare first")


@dataclass(frozen=True)
class _PreparedReachable(PreparedWithPredictor):
    options: Reachable
    display_name = Reachable.display_name

    def uses(self) -> MethodInputs:
        names = ("family", "created", "sha256", "decision_s", "decision_origin")
        facts = {name: getattr(self.predictor, name) for name in names}
        facts["expected_calibration_error"] = self.predictor.calibration_error
        return {**self.options.uses(), "predictor": facts}

    def policy(self) -> Policy:
        latencies = self.options.latencies
        if latencies is None:
            return self.options.policy()
        policy = _ReachablePolicy(self.predictor, latencies, self.options.max_draft)
        return self.options.beside_server(policy, latencies)


class _ReachablePolicy(SurvivalPolicy):
    def __init__(self, predictor: "Predictor", latencies: Latencies, max_draft: int) -> None:
        from specbench_kit.predictors.optimal_stopping import ChanceModel

        super().__init__()
        self.predictor = predictor
        self.latencies = latencies
        self.max_draft = max_draft
        self.model: ChanceModel = ChanceModel()
        self.rule: StoppingRule | None = None
        self.rounds = 0
        self.solve_at = 0

    def draft(self, drafter: "Drafter") -> None:
        self.begin_round()
        rule = self._rule_for(drafter.drafts)
        live = list(drafter.drafts)
        for _ in range(self.max_draft):
            live = [draft for draft in drafter.extend(live) if self._goes_on(rule, draft)]

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for verdict in verdicts:
            self.model.learn(self.chances[verdict.draft.request_id])
        self.rounds += 1

    def round_seconds(self, drafts: "Sequence[Draft]") -> "RoundSeconds":
        """Return the seconds of a round per request, where all requests draft as many tokens."""
        from specbench_kit.predictors.optimal_stopping import RoundSeconds

        requests = len(drafts)
        lengths = range(self.max_draft + 1)
        drafting_s = [draft_s(self.latencies, drafts, length) / requests for length in lengths]
        answers_s = [
            (
                verify_s(self.latencies, drafts, [length] * requests)
                + link_s(self.latencies, requests, length)
            )
            / requests
            for length in lengths
        ]
        decision_s = self.predictor.decision_s / (1 if self.latencies.link is None else requests)
        return RoundSeconds(
            base_s=answers_s[0],
            draft_s=[after - before + decision_s for before, after in pairwise(drafting_s)],
            send_s=[after - before for before, after in pairwise(answers_s)],
        )

    def _rule_for(self, drafts: "Sequence[Draft]") -> "StoppingRule":
        from specbench_kit.predictors.optimal_stopping import StoppingRule

        if self.rule is None or self.rounds >= self.solve_at:
            speed = self.rule.speed if self.rule else 0.0
            self.rule = StoppingRule(self.model, self.round_seconds(drafts), speed)
            self.solve_at = self.rounds + min(max(self.rounds, 1), SOLVE_EVERY)
        return self.rule

    def _goes_on(self, rule: "StoppingRule", draft: "Draft") -> bool:
        """Decide, by what was known before it was drawn, about the newest token; return True to
        draft another one.
        """
        name = draft.request_id
        newest = draft.tree.last
        chance = draft.tree.score(newest, self.predictor)
        survival = self.add_token(name, chance)
        if not rule.sends(newest, chance, survival):
            return False
        self.sent[name] = newest
        return rule.goes_on(newest, chance, survival)
