"""Pages of reproduced experiments: what their figures show."""

import re
from pathlib import Path

import pytest

from specbench_kit.papers.comparison import compare_published
from specbench_kit.papers.experiment import build_experiment
from specbench_kit.studies.reproduction import report
from specbench_kit.studies.reproduction.reproduction import outcome_of

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
