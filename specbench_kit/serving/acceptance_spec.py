"""RoundSource as the command line names it: odds such as `iid:alpha=0.8,length=4`, a trace's file, a run's folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.serving.execution import levels_of_trees
from specbench_kit.serving.round_sources import PositionRates, RecordedRounds, RoundSource, StopRuleOdds, iid
from specbench_kit.traces.replay import ready, replay, require_chains
from specbench_kit.traces.trace import TraceFile


@dataclass(frozen=True)
class Odds(ABC):
    """A stop rule's chances, where there is one: of passing a right token, and of stopping a wrong one.

    `spread`: how much surer the draft model is of some tokens than of others, from 0 to 1. `overconfidence`: what the
    draft model says of a token's odds, over what they are.
    """

    recall: float | None = None
    specificity: float | None = None
    spread: float = 0.0
    overconfidence: float = 1.0

    @property
    def predictor(self) -> StopRuleOdds | None:
        """None without a stop rule."""
        if (self.recall is None) != (self.specificity is None):
            raise SkitError("a stop rule needs both its recall and its specificity")
        if self.recall is None or self.specificity is None:
            return None
        return StopRuleOdds(self.recall, self.specificity)

    @abstractmethod
    def acceptance(self) -> RoundSource:
        """The source that these odds make."""


@dataclass(frozen=True, kw_only=True)
class Iid(Odds):
    """Every token is accepted with probability `alpha` if those before it were."""

    alpha: float
    length: int = 4

    def acceptance(self) -> RoundSource:
        return iid(self.alpha, self.length, self.predictor, self.spread, self.overconfidence)


@dataclass(frozen=True, kw_only=True)
class Positions(Odds):
    """The i-th token is accepted with the i-th of these rates if those before it were."""

    rates: tuple[float, ...]

    def acceptance(self) -> RoundSource:
        return PositionRates(self.rates, self.predictor, self.spread, self.overconfidence)


ODDS: Mapping[str, type[Odds]] = {"iid": Iid, "positions": Positions}


def parse_odds(text: str) -> Odds | None:
    """The odds that a text names; None where it names a file or folder."""
    name, _, tail = text.partition(":")
    if name in ODDS:
        return from_options(name, ODDS[name], tail)
    if Path(text).expanduser().exists():
        return None
    raise SkitError(
        f"unknown acceptance '{text}': name a trace of skit record, the folder of a run, iid:alpha=0.8,length=4, or "
        "positions:rates=0.8-0.7-0.6"
    )


def acceptance(text: str, method: Method, deployment: Deployment) -> RoundSource:
    """The source of rounds that a text names, for a method on a deployment."""
    odds = parse_odds(text)
    if odds is not None:
        return odds.acceptance()
    path = Path(text).expanduser()
    return of_run(path, deployment) if path.is_dir() else of_trace(TraceFile(path), method, deployment)


def of_trace(trace: TraceFile, method: Method, deployment: Deployment) -> RoundSource:
    """A trace, replayed under the method."""
    if not len(trace):
        raise SkitError(f"the trace {trace.path} holds no request: there is nothing to replay")
    require_traceable(method)
    prepared = ready(method, trace, deployment)
    return RecordedRounds(list(replay(prepared, trace.header, trace, deployment=deployment)))


def require_traceable(method: Method) -> None:
    """Trees and pipelines have rounds in runs only."""
    try:
        require_chains(method)
    except SkitError as error:
        raise SkitError(
            f"{method.display_name}: {error}, with skit bench, and name the folder of that run as --acceptance"
        ) from error


def of_run(folder: Path, deployment: Deployment) -> RoundSource:
    """The rounds of a run as it was; trees that grow on while they wait take the levels that there is time for."""
    run = RunDirectory.open(folder)
    records = run.records()
    method = parse_method(run.run["method"])
    proactive: int | None = getattr(method, "proactive_depth", None)
    if proactive is None or not (method.overlaps and any(record.rounds for record in records)):
        return RecordedRounds(records)
    return RecordedRounds(records, levels_of_trees(deployment, *_typical_row(records)), proactive)


def _typical_row(records: Sequence[RequestRecord]) -> tuple[int, int]:
    """New and cached tokens of an average verification."""
    rounds = [one for record in records for one in record.rounds]
    new = 1 + sum(one.submitted for one in rounds) / len(rounds)
    contexts = [len(record.prompt_ids) + len(record.output_ids) / 2 for record in records]
    return round(new), round(sum(contexts) / len(contexts))
