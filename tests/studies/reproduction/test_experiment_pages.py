"""Pages of reproduced experiments: what their figures show."""

import re
from pathlib import Path

import pytest

from specbench_kit.papers.comparison import compare_published
from specbench_kit.papers.experiment import MainClaim, build_experiment, experiments, worlds
from specbench_kit.studies.reproduction import report
from specbench_kit.studies.reproduction.reproduction import outcome_of
from specbench_kit.studies.reproduction.wording import ReproducedExperiment, main_claim

pytestmark = pytest.mark.figures


def test_a_page_without_predictions_shows_what_its_numbers_are_instead(tmp_path: Path) -> None:
    numbers = {"metric": "value", "value": 1.0}
    experiment = build_experiment(
        "wisp/x",
        {
            "command": "law",
            "summary": "things",
            "source": "S",
            "options": {},
            "published": [
                {"series": "a", "role": "identity", **numbers},
                {"series": "b", "role": "identity", **numbers},
                {"series": "c", "role": "input", **numbers},
            ],
        },
    )
    rows = [{"series": name, "value": {"mean": mean}} for name, mean in (("a", 1.0), ("b", 2.0), ("c", 1.0))]
    report.write(tmp_path, [outcome_of(experiment, compare_published(experiment, rows))])
    page = (tmp_path / "wisp.md").read_text()
    assert page.splitlines()[2] == "**No number is predicted; 1 of 1 inputs, 1 of 2 identities come out.**"
    assert page.index("plots/wisp-not-predicted.svg") < page.index("| experiment")
    drawn = (tmp_path / "plots" / "wisp-not-predicted.svg").read_text()
    assert all(text in drawn for text in ("x, identity", "1 of 2", "x, input", "1 of 1"))
    assert "x, predicted" not in drawn
    assert not re.search(r">\d\.\d<", drawn)  # a part of a number is no place on the axis
    assert (tmp_path / "wisp.html").read_text().count("<svg ") == 1


def outcome(against: str, ours: dict[str, float]) -> ReproducedExperiment:
    """An experiment that prints 2 for `a`, 1 for `b` and at least 3 for `c`."""
    printed = [("a", "value", 2.0), ("b", "value", 1.0), ("c", "at_least", 3.0)]
    experiment = build_experiment(
        "wisp/x",
        {
            "command": "law",
            "summary": "things",
            "source": "S",
            "options": {},
            "goal": 0.1,
            "role": "predicted",
            "against": against,
            "published": [
                {"series": name, "metric": "value", stated_as: number} for name, stated_as, number in printed
            ],
        },
    )
    rows = [{"series": name, "value": {"mean": mean}} for name, mean in ours.items()]
    return outcome_of(experiment, compare_published(experiment, rows))


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ({"a": 2.1, "b": 1.0, "c": 3.5}, "It comes out: 2.00, at least 3.00 are printed, and 2.10, 3.50 found."),
        (
            {"a": 2.1, "b": 1.0, "c": 2.5},
            "It comes out in part, 1 of 2 numbers within 10%: 2.00, at least 3.00 are printed, and 2.10, 2.50 found.",
        ),
        (
            {"a": 1.0, "b": 1.0, "c": 2.5},
            "It does not come out within 10%: 2.00, at least 3.00 are printed, and 1.00, 2.50 found.",
        ),
    ],
)
def test_a_sentence_says_what_a_papers_main_claim_comes_to(ours: dict[str, float], words: str) -> None:
    claim = MainClaim("it is fast", "wisp/x", ("a", "c"))
    assert main_claim(claim, [outcome("", ours)]) == f"The main claim is that it is fast. {words}"
    assert main_claim(claim._replace(experiment="wisp/y"), [outcome("", ours)]) == (
        "The main claim is that it is fast; it is not among these experiments: `skit reproduce wisp/y` tries it."
    )
    assert main_claim(claim._replace(series=("d",)), [outcome("", ours)]) == ""


def test_a_claim_may_be_by_how_much_one_series_leads() -> None:
    """Each number is right to 20%, and the lead is half of what is printed."""
    claim = MainClaim("it leads", "wisp/x", ("b",), is_lead=True)
    words = main_claim(claim, [outcome("a", {"a": 1.2, "b": 1.2, "c": 3.0})])
    assert words.endswith("It does not come out within 10%: 2.00 are printed, and 1.00 found for a.")


def test_every_paper_has_a_main_claim_whose_numbers_are_predictions() -> None:
    library = experiments()
    for paper, world in worlds().items():
        experiment = library[world.main_claim.experiment]
        assert experiment.paper == paper
        for series in world.main_claim.series:
            numbers = [number for number in experiment.published if number.series == series]
            assert numbers
            assert all(number.role == "predicted" and number.value is not None for number in numbers)
