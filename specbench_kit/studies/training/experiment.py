"""Everything between a trace and a report: split, train, choose, evaluate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.predictors.base import families
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.search import Budget, search
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey
from specbench_kit.studies.training.contenders import Contender, ContenderTuner, TrainedFamily
from specbench_kit.studies.training.evaluation import Evaluation, Leaders
from specbench_kit.studies.training.examples import Split, extract
from specbench_kit.studies.training.operating_point import OperatingPoint
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.sites import DeploymentTuning
from specbench_kit.studies.training.timing import Timing

FASTEST = OperatingPoint()
LATENCY_TRIALS = 1000
"""As in WISP Table 11."""


@dataclass(frozen=True)
class TrainingExperiment:
    """Families trained on one split, every contender chosen on its validation part, judged on its test part."""

    settings: PredictorTrainingSettings
    split: Split
    timing: Timing
    trained: Mapping[str, TrainedFamily]
    place: DeploymentKey = LOCAL_DEPLOYMENT
    elsewhere: Sequence[tuple[DeploymentKey, Timing]] = ()
    """Further places to choose thresholds for, by speed: another rule knows nothing of a place."""

    @cached_property
    def site(self) -> DeploymentTuning:
        """Where time is that of the report."""
        return DeploymentTuning(
            self.place, ContenderTuner(self.split.validation, self.settings.point, self.timing), self.trained
        )

    @cached_property
    def sites(self) -> tuple[DeploymentTuning, ...]:
        """That one, and the others."""
        choosers = [(place, ContenderTuner(self.split.validation, FASTEST, timing)) for place, timing in self.elsewhere]
        return (self.site, *(DeploymentTuning(place, chooser, self.trained) for place, chooser in choosers))

    @property
    def chooser(self) -> ContenderTuner:
        """What thresholds and lengths are chosen by."""
        return self.site.chooser

    @cached_property
    def line_up(self) -> tuple[Contender, ...]:
        """All that compete, every classifier under WISP's rule."""
        return (*(rules[0] for rules in self.site.by_rules.values()), *self.chooser.rivals())

    @cached_property
    def leaders(self) -> Leaders:
        """The best of each kind, before any test prompt was looked at."""
        speeds = {contender.name: self.chooser.speed(contender) for contender in self.line_up}
        best = self.site.fastest(*self.trained)
        return Leaders.of(self.line_up, best, speeds, self.split.validation.max_draft)

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """All that compete, and the recommended classifier under the other rules."""
        return (*self.line_up, *self.site.by_rules[self.leaders.classifier][1:])

    @cached_property
    def evaluation(self) -> Evaluation:
        """On the test part."""
        return Evaluation(self.split.test, self.contenders, self.leaders, self.timing, self.settings.seed)


def train(
    settings: PredictorTrainingSettings,
    split: Split,
    timing: Timing,
    report: ProgressCallback,
    place: DeploymentKey = LOCAL_DEPLOYMENT,
    elsewhere: Sequence[tuple[DeploymentKey, Timing]] = (),
) -> TrainingExperiment:
    """Search every family; thresholds are chosen and judged when the experiment is asked."""
    for name, part in split.parts.items():
        extract(part).require_both_classes(name)
    trained = {family: _train_family(family, settings, split, report) for family in settings.chosen_families}
    return TrainingExperiment(settings, split, timing, trained, place, elsewhere)


def _train_family(
    name: str, settings: PredictorTrainingSettings, split: Split, report: ProgressCallback
) -> TrainedFamily:
    found = search(
        families.get(name)(),
        extract(split.training, settings.features),
        extract(split.validation, settings.features),
        Budget(settings.trials),
        settings.seed,
        lambda done, planned, _trial: report(f"training {name}", done, planned),
        settings.space_of(name),
    )
    samples = extract(split.test, settings.features).features[:LATENCY_TRIALS].tolist()
    return TrainedFamily(name, found, settings.features, time_scores(found.scorer, samples, LATENCY_TRIALS))
