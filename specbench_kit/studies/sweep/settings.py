"""What a sweep is asked to do, as the command line gives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import LOCAL, Definition, find
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import SYNTHETIC
from specbench_kit.models.executors.agreement import Agreement
from specbench_kit.studies.bench.lanes import BASELINE
from specbench_kit.studies.bench.settings import RECORDED_TOGETHER, BenchSettings
from specbench_kit.studies.sweep.axes import DRAFT, SweepAxis, Values, parse_axes, points, with_options
from specbench_kit.studies.sweep.options import SweepOptions

RECORDED = ("target", "draft", "device", "dtype", "max_new_tokens", "seed", "limit", "argv")
"""Options of the trace that is recorded first."""


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One place of the grid. `specs` are the methods as they run here, by the spec that they were given as.

    Without a deployment, time is that of the machine that recorded the trace.
    """

    values: Values
    deployment: Deployment | None
    specs: dict[str, str]
    draft: str = ""
    """Options of the draft model of a synthetic pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(SweepOptions):
    """`trace` stands in for recording, which goes by `recording` and drafts up to `max_draft` tokens."""

    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self.recording
        if self.max_draft < 1:
            raise SkitError(f"--max-draft must be at least 1, not {self.max_draft}")
        if self.batch_size < 1:
            raise SkitError(f"--batch-size must be at least 1, not {self.batch_size}")

    @property
    def recording(self) -> BenchSettings:
        """Of the trace that is recorded first."""
        shared = {name: getattr(self, name) for name in RECORDED}
        return BenchSettings(methods=(BASELINE,), batch_size=RECORDED_TOGETHER, **shared)

    @property
    def synthetic(self) -> bool:
        """Whether a synthetic pair decodes at every point, so that there is nothing to replay."""
        return self.target == SYNTHETIC

    @property
    def definition(self) -> Definition | None:
        """What the deployment's file says."""
        return None if self.deployment == LOCAL else find(self.deployment)

    def axes(self) -> list[SweepAxis]:
        """What is varied first, what is only set after it."""
        return parse_axes(self.replaced, self.definition.sweep if self.definition else {})

    def points(self) -> list[GridPoint]:
        """The whole grid, with every method and deployment checked."""
        series = [spec for spec in self.methods if spec != BASELINE]
        if not series:
            raise SkitError("no method to compare with autoregressive serving: give at least one --method")
        axes = self.axes()
        _require_owners(axes, series, self.definition, self.synthetic)
        return [self._point(values, series, axes) for values in points(axes)]

    def described(self) -> dict[str, Any]:
        """What decides the outcome, besides models and data."""
        return {
            "methods": list(self.methods),
            "axes": {axis.key: list(axis.values) for axis in self.axes()},
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def _point(self, values: Values, series: Sequence[str], axes: Sequence[SweepAxis]) -> GridPoint:
        specs = {spec: with_options(spec, values) for spec in series}
        for spec in specs.values():
            parse_method(spec)
        if len(set(specs.values())) < len(specs):
            raise SkitError("two methods come to the same in this sweep: name each --method once")
        fields = {axis.key: values[axis.key] for axis in axes if axis.method is None and not axis.of_draft}
        deployment = self.definition.replace(fields).build() if self.definition else None
        return GridPoint(values, deployment, specs, self._draft(values) if self.synthetic else "")

    def _draft(self, values: Values) -> str:
        chosen = {f"{SYNTHETIC}.{key.removeprefix(DRAFT)}": one for key, one in values.items() if key.startswith(DRAFT)}
        options = with_options(self.draft, chosen).partition(":")[2]
        from_options(SYNTHETIC, Agreement, options)
        return options


def _require_owners(
    axes: Sequence[SweepAxis], series: Sequence[str], definition: Definition | None, synthetic: bool
) -> None:
    """Refuse options of methods that do not run, and of a deployment or a synthetic pair that is not there."""
    running = {spec.partition(":")[0] for spec in series}
    if synthetic and definition is None:
        raise SkitError("a synthetic pair takes no time of its own: choose a modelled --deployment")
    for axis in axes:
        if axis.of_draft and not synthetic:
            raise SkitError(f"--set {axis.key}: give --target synthetic and --draft synthetic, whose options these are")
        if axis.method is not None and axis.method not in running:
            raise SkitError(f"--set {axis.key}: there is no --method {axis.method}")
        if axis.method is None and definition is None:
            raise SkitError(f"--set {axis.key}: only a modelled deployment has fields; choose one with --deployment")
