"""The ablation benchmark as a process: modelled time, so its figures are facts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specbench_kit.papers.adaspec import METHODS, ablation

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly  # a process of its own; nothing in the kit depends on it
def test_its_figures_hang_together(tmp_path: Path) -> None:
    sizes = ("--prompts", "2", "--max-new-tokens", "24", "--out", str(tmp_path))
    command = [sys.executable, "-m", "benchmarks", "adaspec_ablation", *sizes]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, check=True)
    written = json.loads((tmp_path / "adaspec_ablation.json").read_text())
    value = {figure["label"]: figure["value"] for figure in written["figures"]}
    for batch_size in (1, 4, 16):
        for spec in METHODS.values():
            label = f"batch {batch_size}, {spec}"
            drafted, submitted, accepted = (
                value[f"{label}: {counted}"] for counted in ("drafted", "submitted", "accepted")
            )
            assert drafted >= submitted >= accepted > 0
            assert drafted == submitted or spec == "adaspec"
            assert value[f"{label}: acceptance rate"] == accepted / submitted
            assert value[f"{label}: draft efficiency"] == accepted / drafted
            assert value[f"{label}: speed-up"] > 1
    assert value["batch 16, adaspec: drafted"] < value["batch 1, adaspec: drafted"]
    assert len(written["notes"]) == 9


def test_the_papers_rates_follow_from_its_averages() -> None:
    """Printed to two digits, of averages that are rounded too: 1.25 / 3.63 is .344, and .35 is printed."""
    rates = [row.acceptance_rate for rows in ablation().values() for row in rows.values()]
    assert rates == pytest.approx([0.24, 0.34, 0.35, 0.22, 0.37, 0.39, 0.26, 0.34, 0.35], abs=0.006)
    rows = ablation()[1]
    assert (rows["adaspec:elimination=false"].drafted, rows["adaspec"].drafted) == (3.57, 3.42)
