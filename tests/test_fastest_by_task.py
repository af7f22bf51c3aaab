"""The script that finds the fastest method of every task: whose lead is shown, and by how much."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from report_builders import autoregressive_like, simulate_chain

pytestmark = pytest.mark.figures

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
script: Any = importlib.import_module("fastest_by_task")


def test_a_lead_is_shown_only_over_methods_that_are_slower_on_most_prompts() -> None:
    """Three tasks have eight prompts each; chains are faster than plain decoding, and an equal method ties."""
    chains = simulate_chain(24, rounds=20, draft=4, alpha=0.9)
    plain = autoregressive_like(chains)
    rows = list(
        script.compare(0.02, {"autoregressive": plain, "fixed-k:k=4": chains, "threshold": chains})
    )
    winners = [(row["task"], row["method"]) for row in rows if row["fastest"]]
    assert winners == [(task, "fixed-k:k=4") for task in ("chat", "code", "maths")]
    assert {row["method"] for row in rows if row["shown_slower"]} == {"autoregressive"}
    for row in rows:
        seconds = {
            name: sum(record.e2e_s or 0.0 for record in records if record.category == row["task"])
            for name, records in {
                "plain": plain,
                "own": plain if row["method"] == "autoregressive" else chains,
            }.items()
        }
        assert row["speedup"] == pytest.approx(seconds["plain"] / seconds["own"])


def test_the_figure_names_every_winner(tmp_path: Path) -> None:
    rows = [
        {
            "task": task,
            "rtt_s": rtt_s,
            "method": method,
            "speedup": 1.5,
            "fastest": method == winner,
            "shown_slower": method != winner,
        }
        for task, rtt_s, winner in (("code", 0.0, "threshold"), ("code", 0.3, "autoregressive"))
        for method in ("autoregressive", "threshold", "svip")
    ]
    script.draw(rows, tmp_path / "fastest.svg", "Fastest")
    picture = (tmp_path / "fastest.svg").read_text()
    assert "threshold" in picture
    assert "autoregressive" in picture
    assert "svip" not in picture
