"""What a training run is asked to do, as the command line gives it."""

from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Deployment
from specbench_kit.predictors.base import Space, families
from specbench_kit.predictors.search import Budget
from specbench_kit.predictors.spaces import changed_spaces
from specbench_kit.predictors.thresholds import LOCAL
from specbench_kit.studies.bench.settings import RECORDED_TOGETHER, BenchSettings
from specbench_kit.studies.training.operating_point import OperatingPoint, parse_operating_point
from specbench_kit.studies.training.options import TrainingOptions

MAX_DRAFT = 8
"""Of WISP; recorded where nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorTrainingSettings(TrainingOptions):
    """Checked when made. `trace` stands in for recording; without `max_draft` its own is used. Without a deployment,
    time is that of the machine that recorded the trace. Thresholds are chosen for the deployments `elsewhere`, too.
    The training is repeated so that `repeats` splits and seeds say how certain its worth is.

    Predictors go to the user's folder for the pair, or to `name-family` there; `save_to` is one folder for the
    recommended predictor, and then no other is written. What was tuned on a disturbed machine's time is saved by
    `force` alone.
    """

    deployment: Deployment | None = None
    elsewhere: tuple[Deployment | None, ...] = ()
    argv: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Budget(self.trials)
        self.recording()
        parse_operating_point(self.operating_point)
        for family in self.families:
            families.get(family)
        changed_spaces(self.space)
        if self.max_draft is not None and self.max_draft < 1:
            raise SkitError(f"--max-draft must be at least 1, not {self.max_draft}")
        if self.repeats < 1:
            raise SkitError(f"--repeats must be at least 1, not {self.repeats}")
        if self.seed < 0:
            raise SkitError(f"--seed must not be negative, but is {self.seed}")
        if self.name is not None and (not self.name or set(self.name) & set("/\\:=,")):
            raise SkitError(f"--name '{self.name}' cannot be a folder's name: use letters, digits, dots and dashes")

    @property
    def timed_here(self) -> bool:
        """Whether something is chosen by the time of the machine that recorded the trace."""
        return None in (self.deployment, *self.elsewhere)

    @property
    def point(self) -> OperatingPoint:
        """How thresholds are chosen."""
        return parse_operating_point(self.operating_point)

    @property
    def chosen_families(self) -> tuple[str, ...]:
        """The families that are trained: all, unless some are named."""
        return tuple(dict.fromkeys(self.families)) or tuple(families.all())

    def space_of(self, family: str) -> Space:
        """What is searched, by hyper-parameter."""
        return {**families.get(family).space, **changed_spaces(self.space).get(family, {})}

    def recording(self) -> BenchSettings:
        """The same for the recording of a trace."""
        shared = ("target", "draft", "device", "dtype", "max_new_tokens", "seed", "limit", "argv")
        fields = {name: getattr(self, name) for name in shared}
        return BenchSettings(methods=("autoregressive",), batch_size=RECORDED_TOGETHER, **fields)

    def described(self) -> dict[str, object]:
        """What decides the outcome, besides models and data."""
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
            "elsewhere": [place.name if place else LOCAL for place in self.elsewhere],
            "repeats": self.repeats,
            "device": self.device,
            "dtype": self.dtype,
        }
