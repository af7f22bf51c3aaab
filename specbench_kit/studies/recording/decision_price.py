"""Measure in the decoding loop what a stop rule costs per drafted token, which can be much of a draft step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import quantiles
from typing import TYPE_CHECKING, NamedTuple

from specbench_kit.decoding.drafting.base import DRAFT, Capability, Drafting
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.policy import Policy
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


class DraftingTimes(NamedTuple):
    """The seconds of a step of the drafter, and those that a stop rule adds to it without its score.

    Either is None if nothing was drafted or, for a stop rule, if it could not be told from the disturbances of the
    machine or the drafter gives no statistics.
    """

    step_s: float | None
    decision_s: float | None


def measure_drafting(
    target: Runner, drafting: Drafting, models: Mapping[str, Runner], prompt: Request, max_draft: int
) -> DraftingTimes:
    """Return the seconds that drafting and deciding take per drafted token in drafts of fixed length.

    Of a hybrid drafter the steps of its models count, since a look-up's time is one of its options.

    Drafts with and without a stop rule take turns, so that disturbances of the machine affect both alike. Disturbances
    only ever add time, therefore the lower quartile of the rounds counts.
    """
    plain = FixedK(min(max_draft, MAX_DRAFT), drafter=drafting.spec)
    scoring = _ScoringFixedK(plain.k, drafter=drafting.spec)
    steps_s: list[float] = []
    per_token_s: dict[Method, list[float]] = {plain: []}
    if drafting.capability >= Capability.STATISTICS:
        per_token_s[scoring] = []
    counted = {"", *(member.display_name for member in drafting.members if member.models)}
    draft = models.get(DRAFT)
    others = {name: runner for name, runner in models.items() if name != DRAFT}
    for turn in range(TURNS):
        for method, seconds in per_token_s.items():
            engine = live_engine(method, target, draft, others=others, setup=DecodingSetup())
            engine.submit(replace(prompt, id=f"{method.display_name}/{turn}", max_new_tokens=OUTPUT_TOKENS))
            while not engine.idle:
                rounds = [round for record in engine.step() for round in record.rounds]
                drafted = [round for round in rounds if round.drafted]
                seconds += [round.policy_s / round.drafted for round in drafted]
                steps_s += [round.draft_s / round.drafted for round in drafted if round.drafter in counted]
    step_s = quantiles(steps_s, n=4)[0] if len(steps_s) > 1 else None
    if min(map(len, per_token_s.values())) < 2 or scoring not in per_token_s:
        return DraftingTimes(step_s, None)
    added_s = quantiles(per_token_s[scoring], n=4)[0] - quantiles(per_token_s[plain], n=4)[0]
    return DraftingTimes(step_s, added_s if added_s > 0 else None)


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
