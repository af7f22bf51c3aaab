"""The round source that `--acceptance` names: rates such as `iid:alpha=0.8,length=4`, a trace, or a
run's folder.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log1p, sqrt
from pathlib import Path
from typing import Literal

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.specs import from_options
from specbench_kit.decoding.drafting.base import parse_drafter
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.drafting_work import WorkLog
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.along import Place
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.serving.drafter_costs import (
    DRAFT_MODEL,
    DrafterCosts,
    costs_of,
    forwards_follow_from_tokens,
)
from specbench_kit.serving.execution import levels_while_verified
from specbench_kit.serving.free_devices import RightTokens
from specbench_kit.serving.golden import GOLDEN, golden_length
from specbench_kit.serving.round_sources import (
    PositionRates,
    RatesByPlace,
    RecordedRounds,
    RoundSource,
    StopRuleRates,
    acceptance_rate_of,
    iid,
)
from specbench_kit.serving.traced_drafts import TracedDrafts
from specbench_kit.traces.draft_limits import fit_spec
from specbench_kit.traces.library import bundled_traces
from specbench_kit.traces.trace import TraceFile


@dataclass(frozen=True)
class AcceptanceRates(ABC):
    """Acceptance that is stated as rates, with an optional stop rule.

    The stop rule lets the share `recall` of right tokens pass and stops at the share `specificity` of wrong ones.
    `spread` (0 to 1) is how much the draft model's confidence varies between tokens, `overconfidence` the odds that it
    reports over the true ones.
    """

    recall: float | None = None
    specificity: float | None = None
    spread: float = 0.0
    overconfidence: float = 1.0

    @property
    def stop_rule(self) -> StopRuleRates | None:
        """The stop rule; None if there is none."""
        if (self.recall is None) != (self.specificity is None):
            raise SkitError("a stop rule needs both its recall and its specificity")
        if self.recall is None or self.specificity is None:
            return None
        return StopRuleRates(self.recall, self.specificity)

    @abstractmethod
    def source(self, costs: DrafterCosts = DRAFT_MODEL) -> RoundSource:
        """Return the source of rounds with these rates, whose drafts cost so much."""


@dataclass(frozen=True, kw_only=True)
class IidRates(AcceptanceRates):
    """Chains of `length` tokens, each accepted with probability `alpha` if all earlier ones
    were.
    """

    alpha: float
    length: int = 4

    def source(self, costs: DrafterCosts = DRAFT_MODEL) -> RoundSource:
        return iid(self.alpha, self.length, self.stop_rule, self.spread, self.overconfidence, costs)


@dataclass(frozen=True, kw_only=True)
class RatesByPosition(AcceptanceRates):
    """Chains whose i-th token is accepted with the i-th rate if all earlier ones were."""

    rates: tuple[float, ...]

    def source(self, costs: DrafterCosts = DRAFT_MODEL) -> RoundSource:
        return PositionRates(self.rates, self.stop_rule, self.spread, self.overconfidence, costs)


@dataclass(frozen=True, kw_only=True)
class StatedLength(AcceptanceRates):
    """Chains of `k` tokens whose mean acceptance length, the bonus token included, is `mean`.

    Every token has the same rate, given that all earlier ones were accepted.
    """

    mean: float
    k: int

    def source(self, costs: DrafterCosts = DRAFT_MODEL) -> RoundSource:
        require(self.k >= 1, f"length: k must be at least 1, not {self.k}")
        require(
            1 <= self.mean <= self.k + 1,
            f"length: mean must lie between 1 and k + 1 = {self.k + 1}, not {self.mean:g}",
        )
        rate = acceptance_rate_of(self.mean - 1, self.k)
        return iid(rate, self.k, self.stop_rule, self.spread, self.overconfidence, costs)


@dataclass(frozen=True, kw_only=True)
class GoldenLength(AcceptanceRates):
    """Chains of `k` tokens with the mean acceptance length that a published curve has for them.

    The mean says nothing about how it comes about: with `shape=iid` every token has the same rate,
    with `shape=even` as many tokens as possible are accepted in every round, and one more now and
    then, as engines do that simulate it.
    """

    name: str
    k: int = 4
    thinking: bool = True
    shape: Literal["iid", "even"] = "iid"

    def source(self, costs: DrafterCosts = DRAFT_MODEL) -> RoundSource:
        accepted = golden_length(self.name, self.k, thinking=self.thinking) - 1
        if self.shape == "iid":
            rate = acceptance_rate_of(accepted, self.k)
            return iid(rate, self.k, self.stop_rule, self.spread, self.overconfidence, costs)
        rates = tuple(min(1.0, max(0.0, accepted - place)) for place in range(self.k))
        return PositionRates(rates, self.stop_rule, self.spread, self.overconfidence, costs)


@dataclass(frozen=True, kw_only=True)
class RateCurve(AcceptanceRates):
    """Chains of `length` tokens whose rate falls, or rises, along a text.

    At the places `at` tokens are accepted with the `rates`, between them on a straight line over the logarithm of the
    place, and beyond them as at the ends. `by` says what the places count: the whole `context`, or the tokens of the
    answer, its `output`.
    """

    at: tuple[int, ...]
    rates: tuple[float, ...]
    length: int = 4
    by: Place = "context"

    def source(self, costs: DrafterCosts = DRAFT_MODEL) -> RoundSource:
        require(
            len(self.at) == len(self.rates) >= 2,
            f"curve: at and rates must have equally many numbers, at least two, not {len(self.at)} and "
            f"{len(self.rates)}",
        )
        require(
            min(self.at) >= 0 and list(self.at) == sorted(set(self.at)),
            f"curve: the places of at must rise from 0 on: {', '.join(map(str, self.at))}",
        )
        begins = sorted({0, *self._steps()})
        # A step has the rate of its middle.
        ends = [*begins[1:], begins[-1] + 1]
        sources = tuple(
            iid(rate, self.length, self.stop_rule, self.spread, self.overconfidence, costs)
            for rate in self._rates_at(
                [sqrt((a + 1) * (b + 1)) - 1 for a, b in zip(begins, ends, strict=True)]
            )
        )
        return RatesByPlace(tuple(begins), sources, self.by)

    def _steps(self) -> list[int]:
        grid = [
            (1 + low) * ((1 + high) / (1 + low)) ** (step / STEPS) - 1
            for low, high in pairwise(self.at)
            for step in range(STEPS)
        ]
        return [round(place) for place in [*grid, self.at[-1]]]

    def _rates_at(self, places: Sequence[float]) -> list[float]:
        known = [log1p(place) for place in self.at]
        return [float(np.interp(log1p(place), known, self.rates)) for place in places]


STEPS = 12
"""Steps of equal rates between two places of a curve."""
FORMS: Mapping[str, type[AcceptanceRates]] = {
    "iid": IidRates,
    "positions": RatesByPosition,
    "length": StatedLength,
    "curve": RateCurve,
    GOLDEN: GoldenLength,
}


def parse_rates(text: str) -> AcceptanceRates | None:
    """Return the rates that a text states; None if it names a file or folder."""
    name, _, options = text.partition(":")
    if name == GOLDEN and "=" not in options.partition(",")[0]:
        options = f"name={options}"
    if name in FORMS:
        return from_options(name, FORMS[name], options)
    if Path(text).expanduser().exists() or text in bundled_traces():
        return None
    raise SkitError(
        f"unknown acceptance '{text}': name a trace of skit record or of skit list traces, the folder of a run, "
        "iid:alpha=0.8,length=4, positions:rates=0.8-0.7-0.6, length:mean=2.4,k=3, "
        "curve:at=100-34000-86000,rates=0.85-0.53-0.47,length=4 (by context), or golden:NAME,k=4 (skit list golden)"
    )


def parse_acceptance(
    text: str, spec: str, deployment: Deployment, *, for_batch: bool = False
) -> RoundSource:
    """Return the source of rounds that a text names, for the method of a spec on a deployment.

    A server decides `for_batch` how far it drafts.
    """
    rates = parse_rates(text)
    if rates is not None:
        method = parse_method(spec)
        require(
            not (for_batch and isinstance(rates, RateCurve)),
            f"{method.display_name} decides for a server's whole batch by how sure the draft model is, which a curve "
            f"does not say of each place: state rates that stay, or {NAME_A_TRACE}",
        )
        require_same_rounds(method, NAME_A_TRACE)
        require_known_forwards(method)
        return rates.source(costs_of(method))
    path = Path(text).expanduser()
    if path.is_dir():
        require(
            not for_batch,
            f"{spec.partition(':')[0]} decides for a server's whole batch by what it would draft, and a run holds what "
            f"it drafted for its own: {NAME_A_TRACE}",
        )
        return run_source(path, deployment)
    trace = TraceFile(path)
    return trace_source(
        trace, parse_method(fit_spec(spec, trace.header)), deployment, for_batch=for_batch
    )


def named_trace(text: str) -> TraceFile | None:
    """Return the trace that a text names; None if it states rates or names the folder of a run."""
    path = Path(text).expanduser()
    return TraceFile(path) if parse_rates(text) is None and not path.is_dir() else None


def trace_source(
    trace: TraceFile, method: Method, deployment: Deployment, *, for_batch: bool = False
) -> RoundSource:
    """Return the rounds of a trace, replayed with the method; all drafts if a server decides
    `for_batch`.
    """
    if not len(trace):
        raise SkitError(f"the trace {trace.path} holds no request: there is nothing to replay")
    require_replayable(method)
    from specbench_kit.traces.replay import prepare_for_replay, replay

    prepared = prepare_for_replay(method, trace, deployment)
    log = WorkLog()
    records = list(replay(prepared, trace.header, trace, deployment=deployment, log=log))
    alone = RecordedRounds(records, log=log, costs=costs_of(prepared))
    if method.ahead is None and not for_batch:
        return alone
    drafting = prepared.drafting
    who = (
        "devices that send drafts ahead are"
        if method.ahead
        else "a server that decides for its whole batch is"
    )
    require(
        drafting == parse_drafter(trace.header.drafter)
        and drafting.tokens_per_forward == 1
        and bool(drafting.models)
        and not drafting.reports_forwards,
        f"{method.display_name} with drafter '{drafting.spec}': {who} simulated with what one draft model or head "
        "drafts token by token, from its own trace: name such a trace, and no other drafter",
    )
    return (
        RightTokens(trace, method.ahead, alone)
        if method.ahead
        else TracedDrafts(trace.header, trace, alone)
    )


DEPENDS_ON_LOAD = "its server never waits, so that its rounds depend on how busy the server is"
"""Why stated or recorded rounds of a method that sends drafts ahead are not those among many
devices.
"""
NAME_A_TRACE = "name a trace as --acceptance"


def require_same_rounds(method: Method, instead: str) -> None:
    """Raise SkitError, which says what to do instead, for a method whose rounds depend on how busy
    a server is.
    """
    require(method.ahead is None, f"{method.display_name}: {DEPENDS_ON_LOAD}: {instead}")


def require_known_forwards(method: Method) -> None:
    """Raise SkitError for a drafter whose forwards follow from more than how many tokens it
    drafted.
    """
    require(
        forwards_follow_from_tokens(method),
        f"{method.display_name}: which forwards drafter '{method.drafter}' needs does not follow from how many tokens "
        f"it drafts: {NAME_A_TRACE}",
    )


def require_replayable(method: Method) -> None:
    """Raise SkitError for methods that draft trees or fill pipelines: only the folder of a run has
    their rounds.
    """
    try:
        from specbench_kit.traces.replay import require_chain_method

        require_chain_method(method)
    except SkitError as error:
        raise SkitError(
            f"{method.display_name}: {error}, with skit bench, and name the folder of that run as --acceptance"
        ) from error


def run_source(folder: Path, deployment: Deployment) -> RoundSource:
    """Return the rounds of a run as they were.

    Trees that go on growing during verification get as many levels as there is time for on this
    deployment.
    """
    run = RunDirectory.open(folder)
    return recorded_source(run.records(), parse_method(str(run.document.method)), deployment)


def recorded_source(
    records: Sequence[RequestRecord],
    method: Method,
    deployment: Deployment,
    log: WorkLog | None = None,
) -> RoundSource:
    """Return the rounds of a method's records, with as many proactive tree levels as fit into a
    verification.

    Where a replay left its `log`, they take the work that they took there.
    """
    require_same_rounds(method, NAME_A_TRACE)
    if log is None:
        require_known_forwards(method)
    costs = costs_of(method)
    proactive: int | None = getattr(method, "proactive_depth", None)
    rounds = [entry for record in records for entry in record.rounds]
    if proactive is None or not (method.overlaps and rounds):
        return RecordedRounds(records, log=log, costs=costs)
    mean_new = 1 + sum(entry.submitted for entry in rounds) / len(rounds)
    contexts = [len(record.prompt_ids) + len(record.output_ids) / 2 for record in records]
    levels = levels_while_verified(
        deployment, round(mean_new), round(sum(contexts) / len(contexts))
    )
    return RecordedRounds(records, levels, proactive, costs=costs)
