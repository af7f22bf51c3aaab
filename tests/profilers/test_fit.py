"""Least squares and its figures of merit."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import convert, structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel, InteractionModel, LatencyModel
from specbench_kit.profilers.base import COEFFICIENTS, Form
from specbench_kit.profilers.fit import Observation, fit, metrics, non_negative
from specbench_kit.profilers.saving import ProfileSummary, TypicalStep, typical_step
from specbench_kit.profilers.workload import Configuration, steps, verification
from specbench_kit.reports.sections.headlines import of_profile

TRUTH = InteractionModel(a_s=2e-4, b_compute_s=3e-9, b_read_s=4e-7, c_s=3e-2)


def observe(model: LatencyModel = TRUTH, noise: float = 0.0) -> list[Observation]:
    random = np.random.default_rng(0)
    return [
        Observation(
            configuration, model.seconds(configuration.rows) * (1 + noise * random.normal())
        )
        for configuration in verification()
    ]


@pytest.mark.parametrize(
    ("form", "model"),
    [("interactions", TRUTH), ("context", ContextModel(alpha_s=1e-7, gamma_s=2e-4, delta_s=1e-2))],
)
def test_coefficients_are_recovered(form: Form, model: LatencyModel) -> None:
    plan = verification() if form == "interactions" else steps((1, 5, 9))
    fitted = fit(
        form,
        [Observation(configuration, model.seconds(configuration.rows)) for configuration in plan],
    )
    assert list(fitted.coefficients.values()) == pytest.approx(
        [getattr(model, name) for name in COEFFICIENTS[form]]
    )
    described = fitted.describe()
    assert described.test.r2 == pytest.approx(1)
    assert described.test.mape == pytest.approx(0, abs=1e-9)
    assert described.generalisation_gap == pytest.approx(0, abs=1e-9)


def test_noise_widens_the_intervals_around_the_truth() -> None:
    fitted = fit("interactions", observe(noise=0.03))
    for name in ("a_s", "c_s"):
        low, high = fitted.intervals[name]
        assert low < getattr(TRUTH, name) < high
    assert 0.95 < (fitted.cross_validation.mean_r2 or 0) < 1
    assert fitted.describe() == fit("interactions", observe(noise=0.03)).describe()


def test_every_figure_is_there_for_every_regime() -> None:
    fitted = fit("interactions", observe(noise=0.03)).describe()
    assert list(fitted.regimes) == ["compute-bound", "memory-bound", "mixed"]
    assert [fitted.regimes[name]["test"].count for name in fitted.regimes] == [17, 17, 16]
    for accuracy in (fitted.train, fitted.test, fitted.regimes["mixed"]["train"]):
        assert None not in structs.astuple(accuracy)
    assert all(sum(terms.values()) == pytest.approx(1) for terms in fitted.shares.values())


def test_metrics_by_hand() -> None:
    errors = metrics(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 2.0, 2.5, 4.0]), predictors=1)
    assert errors.r2 == pytest.approx(1 - 0.5 / 5)
    assert errors.adjusted_r2 == pytest.approx(1 - 0.1 * 3 / 2)
    assert errors.rmse_s == pytest.approx((0.5 / 4) ** 0.5)
    assert (errors.mae_s, errors.max_error_s, errors.bias_s) == (0.25, 0.5, 0.0)
    assert errors.mape == pytest.approx((0.5 + 0.5 / 3) / 4)


def test_a_negative_coefficient_is_left_out_and_the_rest_refitted() -> None:
    from scipy.optimize import nnls

    random = np.random.default_rng(1)
    matrix = random.uniform(0, 1, (40, 4))
    seconds = matrix @ np.array([1.0, -0.5, 2.0, -0.1]) + 0.1 * random.normal(size=40)
    assert non_negative(matrix, seconds) == pytest.approx(nnls(matrix, seconds)[0])
    fitted = fit("interactions", observe(InteractionModel(2e-4, 3e-9, -1e-6, 3e-2)))
    assert fitted.estimates["b_read_s"] == pytest.approx(-1e-6)
    assert fitted.coefficients["b_read_s"] == 0
    assert min(fitted.coefficients.values()) >= 0


def test_too_few_configurations_are_refused() -> None:
    few = [
        observation
        for observation in observe()
        if observation.configuration.regime == "mixed" and observation.configuration.part == "test"
    ]
    with pytest.raises(
        SkitError, match=r"too little was measured.*0 configurations to fit on and 16 to test on"
    ):
        fit("interactions", few)


def summarised(**changes: object) -> ProfileSummary:
    """The summary of a profile that says nothing but what is given."""
    fit_of_none = {
        "form": "work",
        "train": {"count": 0},
        "test": {"count": 0},
        "generalisation_gap": None,
    }
    names = (
        "coefficients",
        "estimates",
        "intervals",
        "cross_validation",
        "regimes",
        "shares",
        "limits",
    )
    nothing = {name: {} for name in names} | {"steps": [], "times": [], "weight_bytes": None}
    verdict = {"kind": "unchecked", "reason": "", "regimes": {}, "short": 0.0, "coefficients": []}
    subject = {
        "name": "",
        "role": "verifier",
        "device": "cpu",
        "model": "m",
        "dtype": "float32",
        "source": "measured",
    }
    described = {
        **fit_of_none,
        **nothing,
        **subject,
        "verdict": verdict,
        "hardware": "",
        "reference": "",
    }
    return convert({**described, **changes}, ProfileSummary, from_attributes=True)


def test_a_headline_names_a_measured_forward_like_a_verification() -> None:
    def observed(new: int, cached: int, requests: int, seconds: float) -> Observation:
        return Observation(
            Configuration("a", "train", "step", ((new, cached),) * requests), seconds
        )

    observations = [observed(1, 512, 1, 0.01), observed(6, 500, 1, 0.02), observed(5, 512, 8, 0.03)]
    fitted = replace(fit("interactions", observe()), observations=tuple(observations))
    assert typical_step("verifier", fitted) == TypicalStep(6, 500, 1, 0.02)
    assert typical_step("drafter", fitted) == TypicalStep(1, 512, 1, 0.01)
    quality = {"count": 9, "r2": 0.99, "mape": 0.02}
    typical = typical_step("verifier", fitted)
    assert of_profile(summarised(train=quality, test=quality, typical=typical)) == (
        "m as verifier on cpu in float32, measured: a verification of 6 tokens after 500 cached tokens takes 20.0 ms; "
        "fit: test R² 0.9900 (train 0.9900), MAPE 2.0%."
    )


def test_a_headline_of_a_derived_verifier_names_a_plain_step_and_a_verification() -> None:
    times = [
        {"requests": 1, "new": new, "seconds": new / 100, "range_s": None, "origin": "silicon"}
        for new in (1, 5)
    ]
    derived = summarised(
        device="a100", dtype="bf16", source="silicon", reference="a table", times=times
    )
    line = of_profile(derived)
    assert line.startswith(
        "m as verifier on a100 in bf16, by a table: a plain step takes 10.0 ms ("
    )
    assert line.endswith("), a verification of 5 tokens 50.0 ms.")
    assert "verification" not in of_profile(structs.replace(derived, role="drafter"))
