"""What judging a drafted token takes in the decoding loop, measured there: beside a draft step it is far from free."""

from dataclasses import dataclass, replace
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from specbench_kit.decoding.policy import Policy
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.base import Method
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specbench_kit.decoding.distributions import DistributionStats
    from specbench_kit.decoding.drafter import Drafter

IN_THE_LOOP = "measured in the decoding loop"
LONGEST, TOKENS, TURNS = 4, 16, 4
"""Of the drafts and answers that are timed, and how often with and without judging."""


def measure_decision(target: Runner, draft: Runner, prompt: Request, max_draft: int) -> float | None:
    """Seconds per drafted token that a stop rule adds to a fixed length, less the score itself.

    Both take turns, so that what disturbs the machine hits them alike; as it only ever adds time, the lower quartile
    of the rounds counts. None where the context leaves no room to draft, or the machine was too busy to tell.
    """
    plain = FixedK(min(max_draft, LONGEST))
    judging = _Judging(plain.k)
    rounds: dict[Method, list[float]] = {plain: [], judging: []}
    for turn in range(TURNS):
        for method, seconds in rounds.items():
            request = replace(prompt, id=f"{method.display_name}/{turn}", max_new_tokens=TOKENS)
            seconds += _policy_seconds(method, target, draft, request)
    if min(map(len, rounds.values())) < 2:
        return None
    added_s = quantiles(rounds[judging], n=4)[0] - quantiles(rounds[plain], n=4)[0]
    return added_s if added_s > 0 else None


def _policy_seconds(method: Method, target: Runner, draft: Runner, request: Request) -> list[float]:
    """Per drafted token, of every round that drafted."""
    engine = live_engine(method, target, draft, sampler=Sampler(), seed=0, eos_ids=frozenset(), batch_size=1)
    engine.submit(request)
    finished = []
    while not engine.idle:
        finished += engine.step()
    return [step.policy_s / step.drafted for record in finished for step in record.rounds if step.drafted]


@dataclass(frozen=True)
class _Judging(FixedK):
    """A fixed length that looks at each token as a stop rule does, and lets it pass."""

    display_name = "judging"

    def policy(self) -> Policy:
        return _JudgingPolicy(self.k)


@dataclass
class _JudgingPolicy(Policy):
    k: int

    def draft(self, drafter: "Drafter") -> None:
        live = drafter.drafts
        for _ in range(self.k):
            live = [draft for draft in drafter.extend(live) if draft.tree.score(draft.tree.last, _Indifferent())]


class _Indifferent:
    """Takes no time to say that every token will do."""

    def score(self, stats: "DistributionStats", place: int) -> float:
        return 1.0

    def score_chain(self, table: "NDArray[Any]") -> list[float]:
        return [1.0] * len(table)
