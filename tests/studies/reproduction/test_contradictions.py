"""What the papers' own numbers exclude: the arguments of their pages, computed."""

import json

import pytest
from documents import ROOT

from specbench_kit.papers.experiment import worlds
from specbench_kit.profilers.loading import load
from specbench_kit.studies.reproduction.laws import pipeline_s
from specbench_kit.studies.reproduction.selection import expected_tokens

PEAK_FLOPS, FLOP_PER_TOKEN = 312e12, 2 * 32.8e9
"""An A100 in half precision, and Qwen3-32B."""


def argument(paper: str, claims: str) -> str:
    (text,) = [entry.argument for entry in worlds()[paper].contradictions if claims in entry.claims]
    return text


def test_every_paper_has_a_world_and_what_its_numbers_exclude() -> None:
    assert set(worlds()) == {"wisp", "adaspec", "specedge", "specpipe", "configspec"}
    assert all(world.contradictions for world in worlds().values())


COMPUTED_HERE = {
    "wisp": (
        "Table 12's",
        "SLED's and centralized's",
        "Table 2's slowest class",
        "Figures 7 and 8",
    ),
    "adaspec": ("Gains over the threshold",),
    "specedge": ("94.2 ms", "Tables 2 and 3"),
    "specpipe": ("The tree holds",),
    "configspec": ("Cost and energy",),
}
"""How the claims of every contradiction begin that a test of this module computes."""


def test_every_contradiction_is_computed_in_a_test() -> None:
    for paper, world in worlds().items():
        claims = [entry.claims for entry in world.contradictions]
        assert len(claims) == len(COMPUTED_HERE[paper])
        assert all(
            claim.startswith(beginning)
            for claim, beginning in zip(claims, COMPUTED_HERE[paper], strict=True)
        )


def test_wisp_table_12_is_faster_than_the_card() -> None:
    printed_s = load("wisp-table-12").coefficients["a_s"]
    possible_s = FLOP_PER_TOKEN / PEAK_FLOPS
    assert (printed_s, possible_s) == pytest.approx((33.14e-6, 210e-6), rel=0.002)
    assert possible_s / printed_s > 6
    assert "210 us" in argument("wisp", "Table 12")


def test_sled_and_centralized_cannot_be_of_one_workload() -> None:
    """A server that recomputes L tokens a round for E committed ones reaches R tokens/s only while R L / E fits."""
    alpha, k = 0.7322, 8
    committed = sum(alpha**position for position in range(k + 1))
    assert committed == pytest.approx(3.5, abs=0.02)
    longest = {tokens: PEAK_FLOPS / FLOP_PER_TOKEN * tokens / 168 for tokens in (committed, k + 1)}
    assert [round(tokens) for tokens in longest.values()] == [99, 255]
    # Centralized serves N devices of speed s: N s steps of one token a second, in batches of N that each read L.
    table_12 = load("wisp-table-12").coefficients
    tokens_by_setup = []
    for devices, speed in ((80, 4), (54, 6), (41, 8)):
        spare_s = 1 / speed - table_12["c_s"] - devices * table_12["a_s"]
        tokens_by_setup.append(spare_s / devices / (table_12["b_read_s"] + table_12["b_compute_s"]))
    assert all(560 < tokens < 660 for tokens in tokens_by_setup)
    assert min(tokens_by_setup) > 2 * max(longest.values())
    assert "99 tokens" in argument("wisp", "SLED")
    assert "255" in argument("wisp", "SLED")


def test_capacity_times_speed_is_the_goodput_but_in_the_slowest_class() -> None:
    goodput = 326.12
    products = {speed: devices * speed for devices, speed in ((97, 2), (80, 4), (54, 6), (41, 8))}
    assert [products[speed] / goodput for speed in (4, 6, 8)] == pytest.approx([1, 1, 1], abs=0.02)
    assert products[2] / goodput == pytest.approx(0.6, abs=0.01)


def test_no_scheduler_that_was_tried_brings_figures_7_and_8_of_wisp() -> None:
    """Read from the reference results: most violations are of a batch, and no class has more than with fcfs."""
    results = json.loads((ROOT / "results" / "reference" / "papers" / "summary.json").read_text())[
        "experiments"
    ]
    numbers = [*results["wisp/figure-7"]["published"], *results["wisp/figure-8"]["published"]]
    holds_by_series: dict[str, dict[str, list[bool]]] = {}
    for number in numbers:
        if number["series"] != "fcfs":
            figure = "8" if number["metric"] == "compute_share" else "7"
            # A figure that no run has, because the server stood still, is no success.
            holds_by_series.setdefault(number["series"], {}).setdefault(figure, []).append(
                bool(number["holds"])
            )
    assert set(holds_by_series) == {"algorithm 1", "algorithm 1, late lane", "wisp-promise"}
    assert {
        name: [all(holds[figure]) for figure in "78"] for name, holds in holds_by_series.items()
    } == {
        "algorithm 1": [False, False],
        "algorithm 1, late lane": [False, True],
        "wisp-promise": [True, False],
    }
    assert "No scheduler that was tried brings both." in argument("wisp", "Figures 7 and 8")


def test_specinfer_serves_one_request_at_a_time_in_specpipes_table_4() -> None:
    """Latency times throughput is one request, whatever the batch size."""
    table_4 = {
        1: (197.23, 4.84),
        2: (154.88, 6.15),
        4: (212.58, 4.49),
        8: (98.05, 9.73),
        16: (100.17, 9.53),
        32: (217.67, 4.39),
    }
    requests = [latency_ms / 1000 * tokens_per_s for latency_ms, tokens_per_s in table_4.values()]
    assert all(0.95 < served < 0.96 for served in requests)


def test_adaspec_states_gains_in_points_of_speedup() -> None:
    adaspec, threshold = {1: 1.73, 3: 1.79}, {1: 1.16, 3: 1.66}
    assert adaspec[3] / threshold[3] - 1 < 0.09
    assert [round(adaspec[trace] - threshold[trace], 2) for trace in (1, 3)] == [0.57, 0.13]
    assert all(0.09 <= adaspec[trace] - threshold[trace] <= 0.58 for trace in (1, 3))


def test_specedge_tables_are_not_of_one_setting() -> None:
    assert pytest.approx(0.085, abs=0.0005) == 4.67 / 54.82
    assert pytest.approx(2.0, abs=0.01) == 0.03647 * 54.82
    assert pytest.approx(1.5, abs=0.03) == 0.03046 * 49.94


def test_specpipe_hit_rates_that_its_speedups_ask_for() -> None:
    plain_s = 0.30239
    for hit_rate, speedup in ((0.87, 4.19), (0.936, 5.53)):
        assert plain_s / pipeline_s(plain_s, 8, hit_rate) == pytest.approx(speedup, rel=0.005)
    assert plain_s / pipeline_s(plain_s, 8, 0.96, 0.005) == pytest.approx(5.53, rel=0.005)
    assert plain_s / pipeline_s(plain_s, 8, 0.95) > 1.3 * 4.19


def test_one_drafted_token_would_be_better_than_two_by_cost_and_by_energy() -> None:
    leads = {
        rate: expected_tokens(rate, 1) / (expected_tokens(rate, 2) / 2) for rate in (0.95, 0.3)
    }
    assert [f"{lead - 1:.0%}" for lead in leads.values()] == ["37%", "87%"]
    text = argument("configspec", "Cost and energy")
    assert all(f"{lead - 1:.0%} at a = {rate}" in text for rate, lead in leads.items())
