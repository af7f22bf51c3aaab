"""Suite v1: its traces and deployments are those of its file, and the numbers that ship come out again."""

import pytest
from matplotlib.figure import Figure
from plug_ins import of_the_kit

from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.deployments.loading import Definition
from specbench_kit.methods.base import methods
from specbench_kit.profilers import cards
from specbench_kit.serving.memory import kv_capacity, verifier_profile
from specbench_kit.studies.suite.definition import PROMPTS, load
from specbench_kit.studies.suite.files import kit_results
from specbench_kit.studies.suite.plots import curves, winners
from specbench_kit.studies.suite.running import run_cell, run_fleet
from specbench_kit.studies.suite.scores import PolicyResult, Scoreboard

IN_NO_CELL = {"pipeline-ar", "pp-microbatch", "spd", "specpipe"}
"""Policies that fill a pipeline, which no trace can serve; the synthetic pairs have no cell with one."""


def test_every_cell_can_be_set_up() -> None:
    suite = load("v1")
    assert len(suite.cells) == 24
    assert {len(cell.tasks) for cell in suite.cells.values() if cell.is_recorded} == {135}
    assert (
        len({task for cell in suite.cells.values() if cell.is_recorded for task in cell.tasks}) == 8
    )


def shipped() -> dict[str, PolicyResult]:
    return {result.policy.spec: result.policy for result in kit_results(load("v1"))}


def test_every_policy_of_the_kit_has_its_row() -> None:
    rows, cells = shipped(), load("v1").cells
    missing = of_the_kit(methods).keys() - IN_NO_CELL - rows.keys()
    assert missing == set(), (
        "skit suite run v1 --method NAME --submit specbench_kit/studies/suite/v1/results"
    )
    assert not IN_NO_CELL & rows.keys()
    for policy in rows.values():
        assert policy.cells.keys() == cells.keys()
        assert all(bool(cell.seconds) != bool(cell.missing) for cell in policy.cells.values())
        assert policy.fleets.keys() == load("v1").fleets.keys()
        assert all(bool(fleet.late) != bool(fleet.missing) for fleet in policy.fleets.values())


@pytest.mark.parametrize(
    ("spec", "cell"),
    [
        ("fixed-k", "coder/edge-14/1"),
        ("margin", "coder/phone-40/8"),
        ("wisp", "coder/phone-160/1"),
        ("adaspec", "coder/colocated/8"),
        ("svip", "small/edge-14/1"),
        ("opt-tree", "coder-trees/edge-40/1"),
        ("specedge", "coder-trees/edge-14/1"),
        ("block-verification", "large-sampled/edge-14/1"),
    ],
)
def test_the_numbers_that_ship_come_out_again(spec: str, cell: str) -> None:
    rerun, policy = run_cell("v1", False, spec, cell), shipped()[spec]
    assert rerun.result == policy.cells[cell]
    assert rerun.predictor in (None, policy.predictor)


def test_trees_have_rows_on_a_part_of_the_recorded_pair() -> None:
    """Cells of the same prompts cut shorter, so that they count in no rank among the cells of the recorded pair."""
    suite = load("v1")
    cells = [cell for cell in suite.cells.values() if cell.pair == "coder-trees"]
    assert [cell.deployment for cell in cells] == ["colocated", "edge-14", "edge-40"]
    assert not any(cell.is_recorded for cell in cells)
    full_requests = {request.request_id: request for request in suite.requests("coder")}
    for request in suite.requests("coder-trees"):
        assert (
            request.output_ids
            == full_requests[request.request_id].output_ids[: len(request.output_ids)]
        )
    rows = shipped()
    for spec in ("opt-tree", "eagle2-tree", "sequoia", "specinfer", "reachable", "autoregressive"):
        assert all(rows[spec].cells[cell.name].seconds for cell in cells)


@pytest.mark.parametrize(("spec", "fleet"), [("fixed-k", "phones"), ("specinfer", "gpus")])
def test_the_devices_that_are_served_come_out_again(spec: str, fleet: str) -> None:
    assert run_fleet("v1", False, spec, fleet).result == shipped()[spec].fleets[fleet]


def test_a_fleet_has_the_memory_that_its_verifier_leaves() -> None:
    suite = load("v1")
    for table in suite.table.fleets.values():
        path = suite.folder / suite.table.deployments[table.deployment].file
        profile = verifier_profile(Definition(path, path.stem, cards.read_toml(path)))
        assert profile is not None
        assert kv_capacity(profile).tokens == table.kv_tokens


def test_the_prompts_for_servers_are_those_of_the_recorded_pair() -> None:
    suite = load("v1")
    prompts = load_dataset(
        str(suite.folder / PROMPTS), data_dir=None, allow_sample=False, limit=None, seed=0
    )
    assert prompts.digest == suite.table.pairs[suite.recorded_pair].prompts


def test_figures_name_every_deployment_and_how_far_its_verifier_is() -> None:
    suite = load("v1")
    cells = [cell for cell in suite.cells.values() if cell.pair == "coder" and cell.batch_size == 1]
    board = Scoreboard(cells, [], [result.policy for result in kit_results(suite)])
    for picture in (
        curves(board, ["fixed-k"], cells, "closest"),
        winners(board, cells, cells[0].tasks[:1]),
    ):
        axes = Figure().subplots()
        picture.draw(axes)
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels[:3] == ["colocated\nno link", "edge\n14 ms", "edge\n40 ms"]
        assert labels[3:] == [
            *(f"phone\n{ms} ms" for ms in (20, 40, 80, 160)),
            "pipeline-8\nno link",
        ]
        assert axes.get_xlabel() == "deployment, and the round trip of its link"
