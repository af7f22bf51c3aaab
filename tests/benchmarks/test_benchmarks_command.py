import json
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from benchmarks.__main__ import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run_benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.nightly  # two processes that time real forwards
def test_a_benchmark_prints_its_bounds_writes_json_and_checks_only_on_request(
    tmp_path: Path,
) -> None:
    sizes = ("forwards", "--prompts", "1", "--rounds", "1", "--out", str(tmp_path))
    checked = run_benchmarks(*sizes, "--check")
    figures = json.loads((tmp_path / "forwards.json").read_text())["figures"]
    bounded = [figure for figure in figures if figure["bound"]]
    assert [figure["bound"]["least"] for figure in bounded] == [None, None, 6, 6, 1.2, 1.4]
    for figure in bounded:
        least, largest = figure["bound"]["least"] or 0, figure["bound"]["most"] or inf
        assert figure["passes"] is (least <= figure["value"] <= largest)
    assert checked.returncode == (0 if all(figure["passes"] for figure in bounded) else 1)
    for figure in bounded:
        assert ("PASS" if figure["passes"] else "FALLS SHORT") in checked.stdout
    assert run_benchmarks(*sizes).returncode == 0


def test_an_unknown_benchmark_is_named_beside_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["forward"])
    assert "unknown benchmark 'forward'; known: against_transformers, " in capsys.readouterr().err
