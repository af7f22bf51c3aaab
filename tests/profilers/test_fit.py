"""Least squares and its figures of merit."""

import numpy as np
import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel, InteractionModel, LatencyModel
from specbench_kit.profilers.base import COEFFICIENTS, Form
from specbench_kit.profilers.fit import Observation, fit, metrics, non_negative
from specbench_kit.profilers.workload import steps, verification

TRUTH = InteractionModel(a_s=2e-4, b_compute_s=3e-9, b_read_s=4e-7, c_s=3e-2)


def observe(model: LatencyModel = TRUTH, noise: float = 0.0) -> list[Observation]:
    random = np.random.default_rng(0)
    return [Observation(one, model.seconds(one.rows) * (1 + noise * random.normal())) for one in verification()]


@pytest.mark.parametrize(
    ("form", "model"), [("interactions", TRUTH), ("context", ContextModel(alpha_s=1e-7, gamma_s=2e-4, delta_s=1e-2))]
)
def test_coefficients_are_recovered(form: Form, model: LatencyModel) -> None:
    plan = verification() if form == "interactions" else steps((1, 5, 9))
    found = fit(form, [Observation(one, model.seconds(one.rows)) for one in plan])
    assert list(found.coefficients.values()) == pytest.approx([getattr(model, name) for name in COEFFICIENTS[form]])
    described = found.describe()
    assert described["test"]["r2"] == pytest.approx(1)
    assert described["test"]["mape"] == pytest.approx(0, abs=1e-9)
    assert described["generalisation_gap"] == pytest.approx(0, abs=1e-9)


def test_noise_widens_the_intervals_around_the_truth() -> None:
    found = fit("interactions", observe(noise=0.03))
    for name in ("a_s", "c_s"):
        low, high = found.intervals[name]
        assert low < getattr(TRUTH, name) < high
    assert 0.95 < found.cross_validation["mean_r2"] < 1
    assert found.describe() == fit("interactions", observe(noise=0.03)).describe()


def test_every_figure_is_there_for_every_regime() -> None:
    found = fit("interactions", observe(noise=0.03)).describe()
    assert list(found["regimes"]) == ["compute-bound", "memory-bound", "mixed"]
    assert [found["regimes"][name]["test"]["count"] for name in found["regimes"]] == [17, 17, 16]
    figures = {"r2", "adjusted_r2", "rmse_s", "mae_s", "mape", "max_error_s"}
    assert figures <= set(found["train"]) & set(found["test"]) & set(found["regimes"]["mixed"]["train"])
    assert all(sum(terms.values()) == pytest.approx(1) for terms in found["shares"].values())


def test_metrics_by_hand() -> None:
    found = metrics(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 2.0, 2.5, 4.0]), predictors=1)
    assert found["r2"] == pytest.approx(1 - 0.5 / 5)
    assert found["adjusted_r2"] == pytest.approx(1 - 0.1 * 3 / 2)
    assert found["rmse_s"] == pytest.approx((0.5 / 4) ** 0.5)
    assert (found["mae_s"], found["max_error_s"], found["bias_s"]) == (0.25, 0.5, 0.0)
    assert found["mape"] == pytest.approx((0.5 + 0.5 / 3) / 4)


def test_a_negative_coefficient_is_left_out_and_the_rest_refitted() -> None:
    from scipy.optimize import nnls

    random = np.random.default_rng(1)
    matrix = random.uniform(0, 1, (40, 4))
    seconds = matrix @ np.array([1.0, -0.5, 2.0, -0.1]) + 0.1 * random.normal(size=40)
    assert non_negative(matrix, seconds) == pytest.approx(nnls(matrix, seconds)[0])
    found = fit("interactions", observe(InteractionModel(2e-4, 3e-9, -1e-6, 3e-2)))
    assert found.estimates["b_read_s"] == pytest.approx(-1e-6)
    assert found.coefficients["b_read_s"] == 0
    assert min(found.coefficients.values()) >= 0


def test_too_few_configurations_are_refused() -> None:
    few = [one for one in observe() if one.configuration.regime == "mixed" and one.configuration.part == "test"]
    with pytest.raises(SkitError, match=r"too little was measured.*0 configurations to fit on and 16 to test on"):
        fit("interactions", few)
