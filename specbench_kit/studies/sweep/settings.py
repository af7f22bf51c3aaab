"""The options of a sweep, checked, and the grid that they span."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.core.specs import from_options
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import LOCAL, Definition, find
from specbench_kit.methods.spec import parse_method, with_options
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import SYNTHETIC
from specbench_kit.models.executors.agreement import Agreement
from specbench_kit.runs.folder import Defining
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.sweep.axes import DRAFT, SweepAxis, Values, parse_axes, points
from specbench_kit.studies.sweep.options import RECORDED_PROMPTS, SweepOptions

RECORDED = (
    "target",
    "draft",
    "device",
    "dtype",
    "executor",
    "max_new_tokens",
    "seed",
    "limit",
    "minutes",
    "argv",
)
"""Options that apply to the trace that is recorded first."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point of the grid; `specs` maps each method's spec as given to its spec at this point.

    Without a deployment, time is that of the machine that recorded the trace. `draft` are the
    options of the draft model of a synthetic pair.
    """

    values: Values
    deployment: Deployment | None
    specs: dict[str, str]
    draft: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings(SweepOptions):
    """The options of a sweep: it replays `trace`, or first records one as `recording` says."""

    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self.recording
        require(self.max_draft >= 1, f"--max-draft must be at least 1, not {self.max_draft}")
        require(self.batch_size >= 1, f"--batch-size must be at least 1, not {self.batch_size}")
        require(self.jobs != 0, "--jobs must be a number of processes, or -1 for one on every core")

    @property
    def recording(self) -> RecordingSettings:
        """Return the settings of the trace that is recorded first."""
        shared = {**{name: getattr(self, name) for name in RECORDED}, "limit": self.prompts}
        return RecordingSettings(**shared)

    @property
    def prompts(self) -> int:
        """Return the number of prompts that are recorded first, or that a synthetic pair is
        given.
        """
        return RECORDED_PROMPTS if self.limit is None else self.limit

    @property
    def synthetic(self) -> bool:
        """Return True if a synthetic pair decodes at every point, so that no trace is replayed."""
        return self.target == SYNTHETIC

    @property
    def definition(self) -> Definition | None:
        """Return the deployment as its file defines it, or None for this machine's time."""
        return None if self.deployment == LOCAL else find(self.deployment)

    def axes(self) -> list[SweepAxis]:
        """Return the axes, those with several values first."""
        return parse_axes(self.replaced, self.definition.sweep if self.definition else {})

    def points(self) -> list[SweepPoint]:
        """Return the whole grid, with every method and deployment checked."""
        series = [spec for spec in self.methods if spec != BASELINE]
        require(
            bool(series),
            "no method to compare with autoregressive serving: give at least one --method",
        )
        axes = self.axes()
        self._require_owners(axes, series)
        return [self._point(values, series, axes) for values in points(axes)]

    def described(self) -> OptionValues:
        """Return everything that determines the results, besides models and data."""
        return {
            "methods": list(self.methods),
            "axes": {axis.key: list(axis.values) for axis in self.axes()},
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def defining(self) -> Defining:
        """Return what tells this sweep from others with the same data, for one that is resumed to
        go on with.
        """
        recorded = {name: getattr(self, name) for name in RECORDED if name != "argv"}
        recorded["limit"] = self.limit if self.trace is not None else self.prompts
        deployments = [
            describe(point.deployment) if point.deployment else None for point in self.points()
        ]
        return {
            **self.described(),
            "deployments": deployments,
            **recorded,
            "max_draft": self.max_draft,
        }

    def _require_owners(self, axes: Sequence[SweepAxis], series: Sequence[str]) -> None:
        """Raise SkitError for options of methods that do not run, and of a deployment or draft that
        does not exist.
        """
        names = {spec.partition(":")[0] for spec in series}
        if self.synthetic and self.definition is None:
            raise SkitError(
                "a synthetic pair takes no time of its own: choose a modelled --deployment"
            )
        for axis in axes:
            if axis.of_draft and not self.synthetic:
                raise SkitError(
                    f"--set {axis.key}: only a synthetic pair has draft options; give --target synthetic and "
                    "--draft synthetic"
                )
            if axis.method is not None and axis.method not in names:
                raise SkitError(f"--set {axis.key}: there is no --method {axis.method}")
            if axis.method is None and self.definition is None:
                raise SkitError(
                    f"--set {axis.key}: only a modelled deployment has fields; choose one with --deployment"
                )

    def _require_replayable(self, spec: str) -> None:
        """Raise SkitError for a method that no trace can hold, or not the one that is recorded
        first.
        """
        method = parse_method(spec)
        advice = "sweep a synthetic pair, which decodes at every point (--target synthetic)"
        require(
            not method.own_distributions,
            f"{spec} changes the draft model's distributions, which no trace holds: leave it out, or {advice}",
        )
        require(
            self.trace is not None or not method.submits_trees,
            f"{spec} drafts trees, and a sweep records chains: leave it out, replay a trace of trees (--replay, see "
            f"skit record --trees), or {advice}",
        )

    def _point(
        self, values: Values, series: Sequence[str], axes: Sequence[SweepAxis]
    ) -> SweepPoint:
        specs = {spec: with_options(spec, values) for spec in series}
        if not self.synthetic:
            for spec in specs.values():
                self._require_replayable(spec)
        if len(set(specs.values())) < len(specs):
            raise SkitError("two methods become the same in this sweep: name each --method once")
        fields = {
            axis.key: values[axis.key] for axis in axes if axis.method is None and not axis.of_draft
        }
        deployment = self.definition.replace(fields).build() if self.definition else None
        draft = ""
        if self.synthetic:
            draft_values = {
                f"{SYNTHETIC}.{key.removeprefix(DRAFT)}": value
                for key, value in values.items()
                if key.startswith(DRAFT)
            }
            draft = with_options(self.draft, draft_values).partition(":")[2]
            from_options(SYNTHETIC, Agreement, draft)
        return SweepPoint(values, deployment, specs, draft)
