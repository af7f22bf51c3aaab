"""Stop at the first token that a learned predictor expects the target to reject."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Environment, Method, Policy, methods, require

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.predictors.artefact import PairHashes, Predictor


@methods.register("wisp")
@dataclass(frozen=True)
class Wisp(Method):
    """Stop at the first token that a learned predictor expects the target to reject; that token is not sent.

    `predictor` is a folder that `skit train-predictor` made, a family (mlp, xgboost, ...), or auto for the best
    one known for the pair. `operating_point` replaces the predictor's own threshold. `force` uses a predictor on
    a pair that it was not trained for.
    """

    predictor: str = "auto"
    max_draft: int = 8
    operating_point: float | None = None
    force: bool = False
    source = "WISP, Li et al. 2025"
    learned = True

    def __post_init__(self) -> None:
        require(self.max_draft >= 1, f"wisp: max_draft must be at least 1, not {self.max_draft}")
        fits = self.operating_point is None or 0 <= self.operating_point <= 1
        require(fits, f"wisp: operating_point must lie in 0..1, not {self.operating_point}")

    def prepare(self, environment: Environment) -> Method:
        from specbench_kit.predictors.artefact import load

        pair = environment.pair
        predictor = load(self._folder(pair), pair=pair, force=self.force)
        if self.operating_point is not None:
            predictor = replace(predictor, threshold=self.operating_point)
        return _PreparedWisp(self.max_draft, predictor)

    def policy(self) -> Policy:
        raise SkitError("wisp needs a predictor for the pair: call prepare first")

    def _folder(self, pair: "PairHashes") -> Path:
        from specbench_kit.predictors.artefact import find

        if Path(self.predictor).is_dir():
            return Path(self.predictor)
        found = find(pair, None if self.predictor == "auto" else self.predictor)
        if not found:
            wanted = "" if self.predictor == "auto" else f" '{self.predictor}'"
            raise SkitError(
                f"wisp: no predictor{wanted} for this pair of models: run skit train-predictor with the same "
                "--target and --draft, or name a folder with wisp:predictor=PATH"
            )
        return found[0]


@dataclass(frozen=True)
class _PreparedWisp(Method):
    max_draft: int
    predictor: "Predictor"
    learned = True

    def policy(self) -> Policy:
        return _WispPolicy(self)


class _WispPolicy(Policy):
    def __init__(self, options: _PreparedWisp) -> None:
        self.max_draft, self.accepts = options.max_draft, options.predictor.accepts
        self.probes: set[str] = set()
        """Requests whose newest token is predicted to be rejected."""

    def draft(self, drafter: "Drafter") -> None:
        self.probes.clear()
        live = drafter.drafts
        for _ in range(self.max_draft):
            live = [draft for draft in drafter.extend(live) if self._goes_on(draft)]

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [list(range(1, len(draft.tree) - (1 if draft.request_id in self.probes else 0))) for draft in drafts]

    def _goes_on(self, draft: "Draft") -> bool:
        accepted = self.accepts(draft.tree.stats(draft.tree.last), draft.tree.last)
        if not accepted:
            self.probes.add(draft.request_id)
        return accepted
