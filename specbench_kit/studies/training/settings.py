"""The options of a training run, checked."""

from dataclasses import dataclass

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import OptionValues
from specbench_kit.deployments.base import Deployment
from specbench_kit.predictors.base import Space, families
from specbench_kit.predictors.search import Budget, changed_spaces
from specbench_kit.predictors.thresholds import LOCAL
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.training.operating_point import OperatingPoint, parse_operating_point
from specbench_kit.studies.training.options import TrainingOptions

MAX_DRAFT = 8
"""WISP's longest draft, which is recorded unless another is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorTrainingSettings(TrainingOptions):
    """The options of a training run.

    Without a deployment, time is that of the machine that recorded the trace. Thresholds are also chosen for
    `further_deployments`.
    """

    deployment: Deployment | None = None
    further_deployments: tuple[Deployment | None, ...] = ()
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Budget(self.trials)
        self.recording()
        parse_operating_point(self.operating_point)
        for family in self.families:
            if line := families.get(family)().missing_package:
                raise SkitError(line)
        changed_spaces(self.space)
        require(
            self.max_draft is None or self.max_draft >= 1,
            f"--max-draft must be at least 1, not {self.max_draft}",
        )
        require(self.repeats >= 1, f"--repeats must be at least 1, not {self.repeats}")
        require(self.seed >= 0, f"--seed must not be negative, but is {self.seed}")
        if self.name is not None and (not self.name or set(self.name) & set("/\\:=,")):
            raise SkitError(
                f"--name '{self.name}' cannot be a folder's name: use letters, digits, dots and dashes"
            )

    @property
    def timed_here(self) -> bool:
        """Return True if a threshold is chosen by the time of the machine that recorded the
        trace.
        """
        return None in (self.deployment, *self.further_deployments)

    @property
    def point(self) -> OperatingPoint:
        """Return the rule that chooses thresholds."""
        return parse_operating_point(self.operating_point)

    @property
    def chosen_families(self) -> tuple[str, ...]:
        """Return the families to train: all that can be trained here, unless some are named."""
        return tuple(dict.fromkeys(self.families)) or tuple(
            name for name in families.all() if name not in self.left_out_families
        )

    @property
    def left_out_families(self) -> dict[str, str]:
        """Return why families are not trained although none is named: the line on the package that
        each needs.
        """
        lines = {
            name: family().missing_package
            for name, family in ({} if self.families else families.all()).items()
        }
        return {name: line for name, line in lines.items() if line}

    def space_of(self, family: str) -> Space:
        """Return the values to search, by hyper-parameter."""
        return {**families.get(family).space, **changed_spaces(self.space).get(family, {})}

    def recording(self) -> RecordingSettings:
        """Return the settings of the trace that is recorded first."""
        shared = (
            "target",
            "draft",
            "device",
            "dtype",
            "executor",
            "max_new_tokens",
            "seed",
            "limit",
            "argv",
        )
        fields = {name: getattr(self, name) for name in shared}
        return RecordingSettings(**fields)

    def described(self) -> OptionValues:
        """Return everything that determines the results, besides models and data."""
        return {
            "max_draft": self.max_draft,
            "max_new_tokens": self.max_new_tokens,
            "families": list(self.chosen_families),
            "features": list(self.features),
            "trials": self.trials,
            "space": list(self.space),
            "seed": self.seed,
            "limit": self.limit,
            "operating_point": self.operating_point,
            "deployment": self.deployment.name if self.deployment else None,
            "elsewhere": [
                deployment.name if deployment else LOCAL for deployment in self.further_deployments
            ],
            "repeats": self.repeats,
            "device": self.device,
            "dtype": self.dtype,
            "executor": self.executor,
        }
