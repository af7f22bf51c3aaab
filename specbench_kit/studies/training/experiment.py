"""The steps from a trace to the numbers of a report: split, train, choose, evaluate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from specbench_kit.core.progress import ProgressCallback
from specbench_kit.predictors.base import families
from specbench_kit.predictors.latency import time_scores
from specbench_kit.predictors.search import Budget, SearchTrial, search
from specbench_kit.predictors.thresholds import LOCAL_DEPLOYMENT, DeploymentKey
from specbench_kit.studies.training.contenders import Contender, ContenderTuner, TrainedFamily
from specbench_kit.studies.training.deployment_tuning import DeploymentTuning
from specbench_kit.studies.training.evaluation import Evaluation, Leaders
from specbench_kit.studies.training.examples import Split, extract
from specbench_kit.studies.training.operating_point import OperatingPoint
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing

FASTEST = OperatingPoint()
LATENCY_TRIALS = 1000
"""Single scores that are timed per family, as in WISP Table 11."""


@dataclass(frozen=True)
class TrainingExperiment:
    """Families trained on one split; contenders are chosen on its validation part and evaluated on its test part.

    `key` and `timing` belong to the deployment that the report is about. `further` are other deployments to choose
    thresholds for, always by speed, since other operating points do not depend on the deployment.
    """

    settings: PredictorTrainingSettings
    split: Split
    timing: Timing
    trained: Mapping[str, TrainedFamily]
    key: DeploymentKey = LOCAL_DEPLOYMENT
    further: Sequence[tuple[DeploymentKey, Timing]] = ()

    @cached_property
    def tuning(self) -> DeploymentTuning:
        """Return the tuning for the deployment that the report is about."""
        tuner = ContenderTuner(self.split.validation, self.settings.point, self.timing)
        return DeploymentTuning(self.key, tuner, self.trained)

    @cached_property
    def tunings(self) -> tuple[DeploymentTuning, ...]:
        """Return the tunings for all deployments, that of the report first."""
        further = (
            DeploymentTuning(key, ContenderTuner(self.split.validation, FASTEST, timing), self.trained)
            for key, timing in self.further
        )
        return (self.tuning, *further)

    @property
    def tuner(self) -> ContenderTuner:
        """Return the tuner for the deployment that the report is about."""
        return self.tuning.tuner

    @cached_property
    def line_up(self) -> tuple[Contender, ...]:
        """Return all contenders, with classifiers under the published rule only."""
        return (*(rules[0] for rules in self.tuning.by_rule.values()), *self.tuner.untrained())

    @cached_property
    def leaders(self) -> Leaders:
        """Return the fastest contender of each kind, chosen without looking at a test prompt."""
        speeds = {contender.name: self.tuner.speed(contender) for contender in self.line_up}
        best = self.tuning.fastest(list(self.trained))
        return Leaders.of(self.line_up, best, speeds, self.split.validation.max_draft)

    @cached_property
    def contenders(self) -> tuple[Contender, ...]:
        """Return all contenders, including the recommended classifier under the other rules."""
        return (*self.line_up, *self.tuning.by_rule[self.leaders.classifier][1:])

    @cached_property
    def evaluation(self) -> Evaluation:
        """Return the evaluation of all contenders on the test part."""
        return Evaluation(self.split.test, self.contenders, self.leaders, self.timing)


def train(
    settings: PredictorTrainingSettings,
    split: Split,
    timing: Timing,
    report: ProgressCallback,
    key: DeploymentKey = LOCAL_DEPLOYMENT,
    further: Sequence[tuple[DeploymentKey, Timing]] = (),
) -> TrainingExperiment:
    """Search hyper-parameters and train every family; thresholds are chosen when the experiment is asked for them."""
    for name, part in split.parts.items():
        extract(part).require_both_classes(name)
    training, validation = (extract(part, settings.features) for part in (split.training, split.validation))
    samples = extract(split.test, settings.features).features[:LATENCY_TRIALS].tolist()
    trained = {}
    for family in settings.chosen_families:
        result = search(
            families.get(family)(),
            training,
            validation,
            Budget(settings.trials),
            settings.seed,
            partial(_report_trial, report, family),
            settings.space_of(family),
        )
        latency = time_scores(result.scorer, samples, LATENCY_TRIALS)
        trained[family] = TrainedFamily(family, result, settings.features, latency)
    return TrainingExperiment(settings, split, timing, trained, key, further)


def _report_trial(report: ProgressCallback, family: str, done: int, planned: int, _trial: SearchTrial) -> None:
    report(f"training {family}", done, planned)
