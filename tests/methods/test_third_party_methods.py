"""A method that another distribution brings, found through a real entry point."""

import json
import os
from pathlib import Path

import pytest
from command_line import environment, error_line, skit

MODULE = '''
"""Draft in pairs."""

from dataclasses import dataclass

from specbench_kit.methods.base import Method, Policy


@dataclass(frozen=True)
class Pairs(Method):
    """Draft two tokens, twice."""

    times: int = 2
    source = "elsewhere"

    def policy(self) -> Policy:
        return _PairsPolicy(self.times)


@dataclass
class _PairsPolicy(Policy):
    times: int

    def draft(self, drafter):
        for _ in range(2 * self.times):
            drafter.extend(drafter.drafts)
'''


def install(folder: Path, entry: str) -> dict[str, str]:
    """A distribution as an installer leaves it; returns the environment in which Python sees it."""
    (folder / "elsewhere_pairs.py").write_text(MODULE)
    info = folder / "elsewhere_pairs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere-pairs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[specbench_kit.methods]\n{entry}\n")
    before = os.environ.get("PYTHONPATH")
    return environment(PYTHONPATH=os.pathsep.join(filter(None, (str(folder), before))))


def test_it_is_listed_beside_the_others(tmp_path: Path) -> None:
    env = install(tmp_path, "pairs = elsewhere_pairs:Pairs")
    listed = json.loads(skit("list", "methods", "--json", env=env).stdout)
    known = {row["name"]: row for row in listed}
    assert {"autoregressive", "fixed-k", "pairs", "threshold"} <= set(known)
    assert known["pairs"]["summary"] == "Draft two tokens, twice."
    assert (known["pairs"]["source"], known["pairs"]["options"]) == ("elsewhere", {"times": 2, "drafter": "model"})
    assert "pairs" in skit("list", "methods", env=env).stdout


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("pairs = elsewhere_trios:Pairs", "the installed method 'pairs' cannot be imported: No module named"),
        ("pairs = elsewhere_pairs:Trios", "the installed method 'pairs' cannot be imported: module 'elsewhere_pairs'"),
        ("fixed-k = elsewhere_pairs:Pairs", "two methods are called 'fixed-k': rename one of them"),
    ],
)
def test_one_that_cannot_be_had_is_one_line(tmp_path: Path, entry: str, reason: str) -> None:
    assert error_line(skit("list", "methods", env=install(tmp_path, entry))).startswith(reason)
