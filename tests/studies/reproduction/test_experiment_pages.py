"""Pages of reproduced experiments: what their figures show."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from specbench_kit.papers.comparison import ComparedNumber, compare_published, compare_simulated
from specbench_kit.papers.experiment import (
    MainClaim,
    Published,
    build_experiment,
    experiments,
    worlds,
)
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.studies.reproduction import report
from specbench_kit.studies.reproduction.reproduction import outcome_of
from specbench_kit.studies.reproduction.steps import steps_picture
from specbench_kit.studies.reproduction.wording import (
    MovedInput,
    ReproducedExperiment,
    main_claim,
    role,
    verdict,
)

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
    rows = [
        FigureRow(name, {}, {"value": {"mean": mean}})
        for name, mean in (("a", 1.0), ("b", 2.0), ("c", 1.0))
    ]
    report.write(tmp_path, [outcome_of(experiment, compare_published(experiment, rows))])
    page = (tmp_path / "wisp.md").read_text()
    assert (
        page.splitlines()[2]
        == "**No number is predicted; 1 of 1 inputs, 1 of 2 identities are within the goal.**"
    )
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
                {"series": name, "metric": "value", stated_as: number}
                for name, stated_as, number in printed
            ],
        },
    )
    rows = [FigureRow(name, {}, {"value": {"mean": mean}}) for name, mean in ours.items()]
    return outcome_of(experiment, compare_published(experiment, rows))


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (
            {"a": 2.1, "b": 1.0, "c": 3.5},
            "It comes out: 'a': 2.00 printed, ours 2.10; 'c': at least 3.00 printed, ours 3.50.",
        ),
        (
            {"a": 2.1, "b": 1.0, "c": 2.5},
            "It comes out in part, 1 of 2 predictions within 10%: 'a': 2.00 printed, ours 2.10; 'c': at least 3.00 "
            "printed, ours 2.50.",
        ),
        (
            {"a": 1.0, "b": 1.0, "c": 2.5},
            "It does not come out within 10%: 'a': 2.00 printed, ours 1.00; 'c': at least 3.00 printed, ours 2.50.",
        ),
    ],
)
def test_a_sentence_says_what_a_papers_main_claim_comes_to(
    ours: dict[str, float], words: str
) -> None:
    claim = MainClaim("it is fast", "wisp/x", ("a", "c"))
    assert main_claim(claim, [outcome("", ours)]) == f"The main claim is that it is fast. {words}"
    assert main_claim(claim._replace(experiment="wisp/y"), [outcome("", ours)]) == (
        "The main claim is that it is fast; it is not among these experiments: `skit reproduce wisp/y` tries it."
    )
    assert main_claim(claim._replace(series=("d",)), [outcome("", ours)]) == ""


def test_a_claim_may_be_by_how_much_one_series_leads() -> None:
    """Each number is right to 20%, and the lead is half of what is printed."""
    claim = MainClaim("it leads", "wisp/x", ("b",), is_lead=True)
    words = main_claim(
        claim,
        [outcome("a", {"a": 1.2, "b": 1.2, "c": 3.0})],
        {"a": "the repaired rule", "b": "another"},
    )
    assert words.endswith(
        "It does not come out within 10%, for 'a': b: 2.00 printed, ours 1.00. 'a' means: the repaired rule."
    )


def test_a_lead_over_a_fitted_number_is_half_fitted(tmp_path: Path) -> None:
    result = outcome("a", {"a": 2.0, "b": 1.0, "c": 3.0})
    fitted = [
        structs.replace(pair, role="fitted", fitted_to="devices") for pair in result.published[:1]
    ]
    report.write(tmp_path, [structs.replace(result, published=[*fitted, *result.published[1:]])])
    assert (
        "| x | a / b: value | follows from the numbers, half fitted: devices |"
        in (tmp_path / "wisp.md").read_text()
    )
    claim = MainClaim("it leads", "wisp/x", ("b",), is_lead=True)
    judged = main_claim(
        claim, [structs.replace(result, published=[*fitted, *result.published[1:]])]
    )
    assert "It is not judged" in judged


def test_a_claim_names_what_is_found_under_each_assumption() -> None:
    claim = MainClaim("it is fast", "wisp/x", ("a", "b"))
    result = outcome("", {"a": 2.1, "b": 1.0})
    joined = [
        structs.replace(pair, value=2.0, within=pair.series == "a") for pair in result.published[:2]
    ]
    words = main_claim(claim, [structs.replace(result, published=joined, variants=(("a", "b"),))])
    assert words.endswith(
        "It does not come out within 10%: value: 2.00 printed, ours 2.10 for 'a' and 1.00 for 'b'."
    )


def test_a_claim_whose_numbers_are_no_predictions_is_not_judged() -> None:
    result = outcome("", {"a": 2.0, "b": 1.0})
    half = [
        structs.replace(pair, role="half fitted", fitted_to="60 ms", counted=False)
        for pair in result.published
    ]
    words = main_claim(
        MainClaim("it is fast", "wisp/x", ("a",)), [structs.replace(result, published=half)]
    )
    assert words == (
        "The main claim is that it is fast. It is not judged, since none of its numbers is a prediction: 'a': 2.00 "
        "printed, ours 2.00 (half fitted: 60 ms)."
    )


def test_every_paper_has_a_main_claim_whose_numbers_are_predictions_or_marked() -> None:
    library = experiments()
    for paper, world in worlds().items():
        experiment = library[world.main_claim.experiment]
        assert experiment.paper == paper
        for series in world.main_claim.series:
            numbers = [number for number in experiment.published if number.series == series]
            assert numbers
            assert all(number.value is not None for number in numbers)
            assert all(
                number.role == "predicted" or "half fitted" in role(compared(number))
                for number in numbers
            )


def compared(number: Published) -> ComparedNumber:
    """Return a published number without one of ours."""
    (pair,) = compare_simulated([(number, None)], 0.1, "")
    return pair


def test_the_table_of_claims_of_a_page_becomes_cards_on_a_phone(tmp_path: Path) -> None:
    """Each cell names its column, so that nothing has to be scrolled sideways."""
    result = outcome("", {"a": 2.1, "b": 1.0, "c": 3.5})
    # More rows than those of a table that goes down because it is short.
    report.write(tmp_path, [structs.replace(result, published=3 * result.published)])
    page = (tmp_path / "wisp.html").read_text()
    claims = next(
        table
        for table in page.split("<table ")
        if "<th scope=col" in table and "claim</th>" in table
    )
    assert claims.startswith(('class="numbers stacked"', 'class="words stacked"'))
    assert 'data-title="verdict"' in claims


def test_only_what_has_an_interval_is_headed_by_one(tmp_path: Path) -> None:
    report.write(tmp_path, [outcome("", {"a": 2.1, "b": 1.0, "c": 3.5})])
    arithmetic = (tmp_path / "wisp.md").read_text()
    assert "| published | ours |" in arithmetic
    assert "interval)" not in arithmetic.partition("## ")[2]


def test_changed_inputs_name_the_seeds_and_these_alone_are_another_caution(
    tmp_path: Path,
) -> None:
    result = outcome("", {"a": 2.1, "b": 1.0, "c": 3.5})
    seeds = {"seeds": "1 in place of 5"}
    for changes, said in (
        (seeds, "OTHER SEEDS of wisp/x: seeds: 1 in place of 5. "),
        (
            {"max_batch": "8 in place of 128", **seeds},
            "CHANGED INPUTS of wisp/x: max_batch: 8 in place of 128, seeds: 1 in place of 5. ",
        ),
    ):
        report.write(tmp_path, [structs.replace(result, changes=changes)])
        assert said in (tmp_path / "wisp.md").read_text()


def test_the_explanation_of_misses_is_marked_as_that_of_the_unchanged_inputs() -> None:
    missed = outcome("", {"a": 4.1, "b": 1.0, "c": 3.5})
    result = structs.replace(missed, prevented="A hundred devices are assumed.")
    assert ". A hundred devices are assumed." in verdict(result)
    changed = structs.replace(result, changes={"devices": "60 in place of 100"})
    assert "Of the unchanged inputs: A hundred devices are assumed." in verdict(changed)


def test_the_page_says_what_an_identity_is_and_what_names_stand_for(tmp_path: Path) -> None:
    result = outcome("", {"a": 2.1, "b": 1.0, "c": 3.5})
    named = [structs.replace(pair, series="algorithm 1, late lane") for pair in result.published]
    report.write(tmp_path, [structs.replace(result, published=named)])
    page = (tmp_path / "wisp.md").read_text()
    assert "An 'identity' follows from other numbers of the same paper by arithmetic" in page
    assert (
        f"| algorithm 1, late lane | {worlds()['wisp'].terms['algorithm 1, late lane']} |" in page
    )
    recipe = (Path(__file__).parents[3] / "docs" / "recipes" / "paper.md").read_text()
    assert "An *identity* follows from other numbers of the same paper by arithmetic" in recipe


def test_a_figure_of_inputs_names_its_lines_in_letters_that_can_be_read() -> None:
    ratios = {f"series {number}": (1.0, 1.0 + number / 10) for number in range(9)}
    result = structs.replace(
        outcome("", {"a": 2.1}), sensitivity=[MovedInput("cost", "0.1", ratios, 1.2)]
    )
    drawn = report.sensitivity(result).decode()
    sizes = {float(size) for size in re.findall(r"font-size: ([\d.]+)px[^>]*>series \d<", drawn)}
    assert len(re.findall(r">series \d<", drawn)) == 9
    assert min(sizes) >= 7


def test_steps_are_drawn_alone_and_in_turn() -> None:
    steps = experiments()["wisp/table-2-steps"].steps
    assert steps is not None
    points = {steps.first, *steps.single, *steps.cumulative}
    found = {point: dict.fromkeys(steps.printed, 1.0) for point in points}
    drawn = steps_picture("wisp/table-2-steps", "here", found, steps).decode()
    labels = re.findall(r"<text[^>]*>([^<]*)<", drawn)
    assert labels.count("late requests yield") == 2
    assert set(steps.printed) <= set(labels)
