"""How certain a training's outcome is: other splits, other seeds."""

from collections.abc import Sequence
from math import exp, log

import pytest
from scipy import stats
from trace_builders import DRAFT_S, VERIFY_S, made_requests, write_trace

from specbench_kit.metrics.statistics import interval_of_resplits
from specbench_kit.studies.training.evaluation import train
from specbench_kit.studies.training.examples import split_by_prompt
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.studies.training.run import repeat
from specbench_kit.studies.training.settings import PredictorTrainingSettings
from specbench_kit.studies.training.timing import Timing


def test_repeats_split_train_and_choose_anew(tmp_path_factory: pytest.TempPathFactory) -> None:
    offsets = read_offsets(
        write_trace(tmp_path_factory.mktemp("trace") / "t.parquet", made_requests(15))
    )
    timing, reported = Timing(DRAFT_S, VERIFY_S, 1e-4), list[tuple[int, int]]()
    settings = PredictorTrainingSettings(families=("logistic",), trials=1)
    experiment = train(settings, split_by_prompt(offsets, 0), timing, lambda *_: None)
    repeats = repeat(experiment, offsets, 4, lambda *step: reported.append(step))
    assert (repeats.count, reported) == (4, [(1, 3), (2, 3), (3, 3)])
    speeds = repeats.wisp_over_fixed
    assert len(set(speeds.values)) == 4
    assert speeds.values[0] == pytest.approx(experiment.evaluation.choices().wisp_over_fixed.value)
    assert speeds.value is not None
    assert speeds.interval is not None
    low, high = speeds.interval
    assert low < speeds.value < high
    assert (repeats.oracle_over_fixed.value or 0) > speeds.value


def test_splits_that_share_prompts_are_no_independent_ones() -> None:
    """Nadeau and Bengio: the variance of the mean is (1 / n + n_test / n_train) times that of one split."""
    ratios: Sequence[float] = [1.0, 1.1, 0.95, 1.05, 1.02]
    value, interval = interval_of_resplits(ratios, 0.2)
    logs = [log(ratio) for ratio in ratios]
    half = stats.t.ppf(0.975, 4) * ((1 / 5 + 0.25) * stats.tvar(logs)) ** 0.5
    assert value == pytest.approx(stats.gmean(ratios))
    assert interval == pytest.approx([value * exp(sign) for sign in (-half, half)])
    assert interval_of_resplits([1.0, 1.1], 0.2)[1] is None
    assert interval_of_resplits([1.1] * 5, 0.2)[1] is None
