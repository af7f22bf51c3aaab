"""Pick each method's options on some prompts of a trace, and say on the others what that gained."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from random import Random

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs import provenance
from specbench_kit.studies.bench.choice import expand
from specbench_kit.studies.bench.tuned_options import TunedMethod, TunedOptions
from specbench_kit.studies.tuning.options import TuningOptions
from specbench_kit.traces.replay import ready, recorded, replay
from specbench_kit.traces.trace import RequestTrace, TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings(TuningOptions):
    """`budget` candidates of every method, its defaults among them, are replayed on every other request of a trace."""

    deployment: Deployment | None = None
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise SkitError(f"--budget must be at least 1, not {self.budget}")
        if self.batch_size < 1:
            raise SkitError(f"--batch-size must be at least 1, not {self.batch_size}")


def tune(settings: TuningSettings, report: ProgressCallback) -> tuple[TunedOptions, dict[str, str]]:
    """The best candidates, and why other methods have none."""
    trace = TraceFile(settings.trace)
    requests = list(trace)
    if len(requests) < 2:
        raise SkitError(
            f"the trace {settings.trace} holds {len(requests)} requests: tuning takes 2 or more, for two parts"
        )
    stand = _Stand(settings, trace, requests[::2], requests[1::2])
    found: dict[str, TunedMethod] = {}
    left_out: dict[str, str] = {}
    for spec, named in expand(settings.methods, baseline=True).items():
        if named and ":" in spec:
            raise SkitError(f"skit tune chooses the options itself: name {spec.partition(':')[0]} alone")
        try:
            found[spec] = stand.choose(spec, report)
        except SkitError as error:
            if named:
                raise
            left_out[spec] = str(error).removeprefix(f"{spec}: ")
    about = {"dataset": trace.said("dataset"), "models": trace.said("models"), "requests": len(requests)}
    run = {**about, "trace": provenance.hash_file(trace.path), "seed": settings.seed, "argv": list(settings.argv)}
    return TunedOptions(found, stand.deployment.name, settings.batch_size, settings.budget, run), left_out


def candidates(name: str, budget: int, seed: int) -> list[str]:
    """A method as it comes, then a sample of its grid's points without repetition; the same for every run."""
    grid = methods.get(name).grid
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []
    Random(f"{seed}/{name}").shuffle(points)
    specs = [f"{name}:{','.join(f'{key}={value}' for key, value in point.items())}" for point in points]
    plain = parse_method(name)
    others = (spec for spec in specs if parse_method(spec) != plain)
    return [name, *islice(others, budget - 1)]


class _Stand:
    """Where candidates are tried: on the requests for choosing, then on those for telling."""

    def __init__(
        self,
        settings: TuningSettings,
        trace: TraceFile,
        choosing: Sequence[RequestTrace],
        telling: Sequence[RequestTrace],
    ) -> None:
        self.settings, self.trace = settings, trace
        self.choosing, self.telling = choosing, telling
        self.deployment = settings.deployment or recorded(trace.header)

    def choose(self, name: str, report: ProgressCallback) -> TunedMethod:
        """The fastest candidate; one that the trace does not serve is passed over."""
        specs = candidates(name, self.settings.budget, self.settings.seed)
        speeds: dict[str, float] = {}
        refused: list[SkitError] = []
        for tried, spec in enumerate(specs, 1):
            try:
                speeds[spec] = self.tokens_per_s(spec, self.choosing)
            except SkitError as error:
                refused.append(error)
            report(name, tried, len(specs))
        if not speeds:
            raise refused[0]
        best = max(speeds, key=speeds.__getitem__)
        default = self.tokens_per_s(name, self.telling) if name in speeds else None
        return TunedMethod(best, len(speeds), self.tokens_per_s(best, self.telling), default)

    def tokens_per_s(self, spec: str, requests: Sequence[RequestTrace]) -> float:
        """Committed tokens over the time in which all requests were answered."""
        method = ready(parse_method(spec), self.trace, self.deployment)
        batch_size, seed = self.settings.batch_size, self.settings.seed
        records = list(
            replay(method, self.trace.header, requests, deployment=self.deployment, batch_size=batch_size, seed=seed)
        )
        return sum(len(record.output_ids) for record in records) / max(record.finished_s or 0.0 for record in records)
