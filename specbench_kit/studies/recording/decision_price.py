"""Measure in the decoding loop what a stop rule costs per drafted token, which can be much of a draft step."""

from dataclasses import dataclass, replace
from statistics import quantiles
from typing import TYPE_CHECKING

from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.base import Method
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.distributions import DistributionStats
    from specbench_kit.decoding.drafter import Drafter

IN_THE_LOOP = "measured in the decoding loop"
MAX_DRAFT = 4
"""Longest drafts that are timed."""
OUTPUT_TOKENS = 16
"""Length of the answers that are timed."""
TURNS = 4
"""How often answers are timed with and without a stop rule."""


def measure_decision(target: Runner, draft: Runner, prompt: Request, max_draft: int) -> float | None:
    """Return the seconds per drafted token that a stop rule adds to drafts of fixed length, without its score.

    Drafts with and without a stop rule take turns, so that disturbances of the machine affect both alike. Disturbances
    only ever add time, therefore the lower quartile of the rounds counts. Return None if the context leaves no room to
    draft, or if the machine was too busy to measure a difference.
    """
    plain = FixedK(min(max_draft, MAX_DRAFT))
    scoring = _ScoringFixedK(plain.k)
    per_token_s: dict[Method, list[float]] = {plain: [], scoring: []}
    for turn in range(TURNS):
        for method, seconds in per_token_s.items():
            engine = live_engine(method, target, draft, sampler=Sampler(), seed=0, eos_ids=frozenset(), batch_size=1)
            engine.submit(replace(prompt, id=f"{method.display_name}/{turn}", max_new_tokens=OUTPUT_TOKENS))
            while not engine.idle:
                rounds = [round for record in engine.step() for round in record.rounds]
                seconds += [round.policy_s / round.drafted for round in rounds if round.drafted]
    if min(map(len, per_token_s.values())) < 2:
        return None
    added_s = quantiles(per_token_s[scoring], n=4)[0] - quantiles(per_token_s[plain], n=4)[0]
    return added_s if added_s > 0 else None


@dataclass(frozen=True)
class _ScoringFixedK(FixedK):
    """Drafts of fixed length whose policy scores each token as a stop rule does, and never stops early."""

    display_name = "judging"

    def policy(self) -> Policy:
        return _ScoringPolicy(self.k)


@dataclass
class _ScoringPolicy(Policy):
    k: int

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.k):
            live = [draft for draft in drafter.extend(live) if draft.tree.score(draft.tree.last, _ConstantScore())]


class _ConstantScore:
    """Scores every token with 1 at no cost, so that only the overhead around a score is measured."""

    def score(self, stats: "DistributionStats", place: int) -> float:
        return 1.0

    def score_chain(self, table: "NDArray[np.float32]") -> list[float]:
        return [1.0] * len(table)
