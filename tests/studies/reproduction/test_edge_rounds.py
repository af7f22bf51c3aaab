"""Rounds of a drafting device and a server: their parts add up, and the signs that re-runs of SpecEdge found follow."""

import pytest

from specbench_kit.papers.experiment import experiments
from specbench_kit.studies.reproduction.edge_rounds import (
    edge_over_plain,
    edge_round_rate,
    forward_s,
    latency_of,
    tree_s,
)

JETSON = dict(experiments()["specedge/rerun-jetson"].options["series"]["over the server alone"])
JETSON.pop("law")


def test_a_tree_is_one_forward_of_the_root_and_one_of_all_beams_per_further_level() -> None:
    model, device, software = "tinyllama-1.1b", "jetson-agx-orin-64", "kernels"
    latency = latency_of(model, device, software, "drafter")
    root, level = latency.seconds([(1, 200)]), latency.seconds([(32, 200)])
    assert tree_s(model, device, software, 1, 32, 200) == root
    assert tree_s(model, device, software, 4, 32, 200) == pytest.approx(root + 3 * level)


def test_a_round_is_its_parts_and_the_server_alone_has_no_link() -> None:
    edge, server = (JETSON["edge"], JETSON["edge_software"]), (JETSON["server"], "papers")
    tree = tree_s(JETSON["draft_model"], *edge, JETSON["levels"], JETSON["beams"], 200)
    verify = forward_s(JETSON["target"], *server, 33, 200)
    plain = forward_s(JETSON["target"], *server, 1, 200)
    round_s = tree + JETSON["rtt_s"] + verify
    assert edge_round_rate(**JETSON) == pytest.approx(3.0 / round_s)
    assert edge_over_plain(**JETSON) == pytest.approx(3.0 * plain / round_s)
    slowed = {**JETSON, "more_s": 0.1}
    assert edge_over_plain(**slowed) == pytest.approx(3.0 * (plain + 0.1) / (round_s + 0.1))


def test_the_jetson_loses_beside_a_quick_server_and_wins_beside_a_slow_one() -> None:
    speeds = [edge_over_plain(**{**JETSON, "more_s": more_s}) for more_s in (0.0, 0.05, 0.2)]
    assert speeds == sorted(speeds)
    assert speeds[0] < 1 < speeds[1]
