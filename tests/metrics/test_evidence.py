"""What rounding explains: the bound on a margin, and each condition of a tie, by figures chosen by hand."""

from dataclasses import replace

import pytest

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.evidence import (
    PLAUSIBLE,
    ChoiceOfShape,
    DivergenceEvidence,
    OutputEvidence,
)

RECORD = RequestRecord("a", "test", [1], [2])
TIE = DivergenceEvidence(
    position=0,
    token=5,
    expected=6,
    margin=0.01,
    are_best=True,
    verified=ChoiceOfShape(5, 0.0),
    plain=ChoiceOfShape(6, 0.0),
)
NOISE = 0.25


def verdict(divergence: DivergenceEvidence, *, exact: bool = True, **evidence: float) -> str:
    output_evidence = OutputEvidence(
        **{"noise": NOISE, "control": NOISE, **evidence}, divergences=(divergence,)
    )  # type: ignore[arg-type]
    return output_evidence.verdict(RECORD, exact).verdict


@pytest.mark.parametrize(("margin", "expected"), [(2 * NOISE, "tie"), (2 * NOISE + 0.001, "error")])
def test_a_margin_may_be_twice_the_noise(margin: float, expected: str) -> None:
    """Either of two tokens may have moved by the noise, and no further."""
    assert verdict(replace(TIE, margin=margin)) == expected


@pytest.mark.parametrize(
    ("margin", "expected"), [(2 * PLAUSIBLE * 0.02, "tie"), (2 * PLAUSIBLE * 0.02 + 0.001, "error")]
)
def test_noise_counts_up_to_a_multiple_of_the_controls(margin: float, expected: str) -> None:
    assert verdict(replace(TIE, margin=margin), control=0.02) == expected


@pytest.mark.parametrize(("margin", "expected"), [(0.02, "tie"), (0.021, "error")])
def test_in_half_precision_the_margin_has_to_be_small_in_float32_too(
    margin: float, expected: str
) -> None:
    assert verdict(replace(TIE, precise_margin=margin), precise_noise=0.01) == expected


def test_a_third_token_before_both_is_no_rounding() -> None:
    assert verdict(TIE) == "tie"
    assert verdict(replace(TIE, are_best=False)) == "error"


@pytest.mark.parametrize("side", ["verified", "plain"])
def test_a_shape_that_is_known_gives_the_very_token(side: str) -> None:
    """A shape that is only alike may give a token whose scores are within the bound of being chosen."""
    near = replace(TIE, **{side: ChoiceOfShape(9, 1.9 * NOISE)})
    far = replace(TIE, **{side: ChoiceOfShape(9, 2.1 * NOISE)})
    assert [verdict(near, exact=True), verdict(near, exact=False), verdict(far, exact=False)] == [
        "error",
        "tie",
        "error",
    ]


def test_one_error_decides_over_ties() -> None:
    far = replace(TIE, position=3, margin=9.0)
    judgement = OutputEvidence(NOISE, NOISE, divergences=(TIE, far)).verdict(RECORD, exact=True)
    assert (judgement.verdict, judgement.position, judgement.margin) == ("error", 3, 9.0)
    first = OutputEvidence(NOISE, NOISE, divergences=(TIE, replace(TIE, position=3))).verdict(
        RECORD, exact=True
    )
    assert (first.verdict, first.position) == ("tie", 0)
