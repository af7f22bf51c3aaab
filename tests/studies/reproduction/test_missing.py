"""What is missing for numbers that are not met: said of each of them, with a place in the paper, and on the pages."""

import re
from pathlib import Path

import pytest
from documents import ROOT
from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.papers.comparison import ComparedNumber, compare_published
from specbench_kit.papers.experiment import build_experiment, experiments
from specbench_kit.papers.figure_row import FigureRow
from specbench_kit.studies.kinds import studies_in
from specbench_kit.studies.reproduction import report
from specbench_kit.studies.reproduction.reproduction import outcome_of
from specbench_kit.studies.reproduction.wording import ReproducedExperiment

PLACE = re.compile(
    r"Table \d|Figures? \d|Equation \d|Algorithm 1|Appendix [A-E]|[Ss]ection \d|abstract|introduction|text of|code|"
    r"recorded (file|benchmark)"
)
"""How an explanation says where a reader looks: a place of the paper, its code, or the file of a run by others."""


@pytest.fixture(scope="module")
def committed() -> dict[str, ReproducedExperiment]:
    """The committed results of all experiments, by name."""
    (study,) = studies_in(ROOT / "results" / "reference" / "papers")
    return dict(study.result.experiments)


def not_met(result: ReproducedExperiment) -> list[ComparedNumber]:
    return [number for number in result.published if number.within is False]


@pytest.mark.parametrize("name", experiments())
def test_each_number_that_is_not_met_says_what_is_missing(
    name: str, committed: dict[str, ReproducedExperiment]
) -> None:
    experiment = experiments()[name]
    outside = not_met(committed[name])
    unsaid = [
        (number.series, number.metric, number.where)
        for number in outside
        if not experiment.missing_for(number)
    ]
    assert unsaid == []
    said = {experiment.missing_for(number) for number in outside}
    assert [entry.because for entry in experiment.missing if entry.because not in said] == []
    for words in said:
        assert PLACE.search(words), words
        assert words.endswith("."), words


def test_the_pages_say_it_of_each_number(committed: dict[str, ReproducedExperiment]) -> None:
    folder = ROOT / "results" / "reference" / "papers"
    everything = (folder / "README.md").read_text(encoding="utf-8")
    for name, result in committed.items():
        page = (folder / f"{name.partition('/')[0]}.md").read_text(encoding="utf-8")
        for number in not_met(result):
            words = experiments()[name].missing_for(number).replace("<", "\\<")
            assert words in page, (name, number.series)
            assert words in everything, (name, number.series)


CONTENT: JsonObject = {
    "command": "law",
    "summary": "things",
    "source": "S",
    "options": {},
    "role": "predicted",
    "published": [{"series": name, "metric": "value", "value": 1.0} for name in "abc"],
}


def written(tmp_path: Path, missing: list[JsonObject], monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of an experiment whose series `a` comes out and whose others do not."""
    experiment = build_experiment("wisp/x", {**CONTENT, "missing": missing})
    monkeypatch.setattr(report, "experiments", lambda: {"wisp/x": experiment})
    rows = [
        FigureRow(name, {}, {"value": {"mean": mean}})
        for name, mean in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    ]
    result = outcome_of(experiment, compare_published(experiment, rows))
    report.write(tmp_path, [result], ["md"])
    report.write(
        tmp_path / "changed",
        [structs.replace(result, changes={"devices": "3 in place of 2"})],
        ["md"],
    )
    return (tmp_path / "README.md").read_text(encoding="utf-8")


def test_the_first_entry_that_holds_is_shown_with_the_numbers_that_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = written(
        tmp_path,
        [{"series": ["b"], "because": "Of b alone."}, {"because": "Of all others."}],
        monkeypatch,
    )
    section = page.partition("## What is missing where a number is not met")[2]
    assert "| value: b (1.000) | Of b alone. |" in section
    assert "| value: c (1.000) | Of all others. |" in section
    assert "a (1.000)" not in section.partition("## ")[0]
    # It is said of the unchanged inputs, so that a page of changed ones does not have it.
    changed = (tmp_path / "changed" / "README.md").read_text(encoding="utf-8")
    assert "What is missing" not in changed


def test_an_entry_of_a_series_without_a_number_is_refused() -> None:
    with pytest.raises(SkitError, match="missing for series without a number: d"):
        build_experiment("wisp/x", {**CONTENT, "missing": [{"series": ["d"], "because": "No."}]})
    with pytest.raises(SkitError, match=r"the experiment wisp/x: .*serie is unknown"):
        build_experiment("wisp/x", {**CONTENT, "missing": [{"serie": ["a"], "because": "No."}]})
