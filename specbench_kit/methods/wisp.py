"""Stop at the first token that a learned predictor expects the target to reject."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Chains, Environment, Method, Policy, StopRule, methods, require
from specbench_kit.methods.fixed_k import FixedK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.predictors.artefact import Predictor
    from specbench_kit.predictors.library import PairHashes


@methods.register("wisp")
@dataclass(frozen=True)
class Wisp(Method):
    """Stop at the first token that a learned predictor expects the target to reject; that token is not sent.

    `predictor` is a name or family that `skit list predictors` shows, or a folder that `skit train-predictor` made,
    with a separator (`./mine`), or auto for the best one known for the pair. `max_draft` and `operating_point` replace
    the longest draft and the threshold that the predictor was tuned to. `force` uses a predictor on a pair that it was
    not trained for.
    """

    predictor: str = "auto"
    max_draft: int | None = None
    operating_point: float | None = None
    force: bool = False
    source = "WISP, Li et al. 2025"
    learned = True

    def __post_init__(self) -> None:
        drafts = self.max_draft is None or self.max_draft >= 1
        require(drafts, f"wisp: max_draft must be at least 1, not {self.max_draft}")
        fits = self.operating_point is None or 0 <= self.operating_point <= 1
        require(fits, f"wisp: operating_point must lie in 0..1, not {self.operating_point}")

    def prepare(self, environment: Environment) -> Method:
        from specbench_kit.predictors.artefact import load

        pair = environment.pair
        predictor = load(self._folder(pair), pair=pair, force=self.force)
        if self.operating_point is not None:
            predictor = replace(predictor, threshold=self.operating_point)
        if self.max_draft is not None:
            predictor = replace(predictor, max_draft=self.max_draft)
        made = _PreparedWisp if predictor.threshold else _UndecidedWisp
        return made(predictor, drafter=self.drafter)

    def policy(self) -> Policy:
        raise SkitError("wisp needs a predictor for the pair: call prepare first")

    def _folder(self, pair: "PairHashes") -> Path:
        from specbench_kit.predictors.library import find

        if any(separator in self.predictor for separator in (os.sep, os.altsep) if separator):
            return Path(self.predictor).expanduser()
        found = find(pair, None if self.predictor == "auto" else self.predictor)
        if not found:
            others = ", ".join(folder.name for folder in find(pair))
            raise SkitError(
                f"wisp: no predictor '{self.predictor}' for this pair of models; known: {others}"
                if others
                else "wisp: no predictor for this pair of models: run skit train-predictor with the same --target and "
                "--draft, or name a folder with wisp:predictor=./PATH"
            )
        return found[0]


@dataclass(frozen=True)
class _PreparedWisp(Method):
    predictor: "Predictor"
    called = Wisp.called
    learned = True

    @property
    def trained_on(self) -> frozenset[str]:
        return self.predictor.prompts

    @property
    def trained_apart(self) -> bool:
        return self.predictor.was_trained_apart

    def uses(self) -> Mapping[str, Any]:
        names = ("family", "created", "threshold", "max_draft", "deployment")
        return {"predictor": {name: getattr(self.predictor, name) for name in names}}

    def policy(self) -> Policy:
        return _WispPolicy(self.predictor)


@dataclass(frozen=True)
class _UndecidedWisp(_PreparedWisp):
    """Where every token passes there is nothing to decide, and no score is worth its time."""

    learned = False

    def policy(self) -> Policy:
        return FixedK(self.predictor.max_draft).policy()


class _WispPolicy(Policy):
    def __init__(self, predictor: "Predictor") -> None:
        self.predictor = predictor
        self.probes: set[str] = set()
        """Requests whose newest token is predicted to be rejected."""

    @property
    def stop_rule(self) -> StopRule:
        return StopRule(self.predictor.max_draft, self._rejected, sends_last=False)

    def draft(self, drafter: "Drafter") -> None:
        self.probes.clear()
        live = drafter.drafts
        for _ in range(self.predictor.max_draft):
            live = [draft for draft in drafter.extend(live) if self._goes_on(draft)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(range(1, len(draft.tree) - (1 if draft.request_id in self.probes else 0))) for draft in drafts]

    def _rejected(self, chains: Chains) -> "NDArray[np.bool_]":
        return ~(self.predictor.score_chains(chains.statistics) >= self.predictor.threshold)

    def _goes_on(self, draft: "Draft") -> bool:
        accepted = draft.tree.judge(draft.tree.last, self.predictor) >= self.predictor.threshold
        if not accepted:
            self.probes.add(draft.request_id)
        return accepted
