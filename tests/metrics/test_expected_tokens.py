"""How many tokens a policy reckoned with to be accepted, beside how many were."""

from pathlib import Path

import pytest
from method_specs import filled_in
from report_builders import make_record, make_round, make_run, summary_of
from report_builders import render_run as render

from specbench_kit.deployments.loading import load
from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts
from specbench_kit.metrics.acceptance import EXPECTED_RATIOS
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise

EXPECTED = {
    "threshold:threshold=0,max_draft=3": 0.5 + 0.25 + 0.125,
    "opt-tree:nodes=4,max_depth=3,gain=0": 0.5 + 0.25 + 0.25 + 0.125,
    "eagle2-tree:total=4,depth=1,top_k=2": 0.5 + 0.25 + 0.25,
    "sequoia:ranks={ranks},size=3,max_depth=2": 0.5 + 0.2,
    "tetris:k=2": 0.5 + 0.25,
    "goodput:max_draft=2,initial_acceptance=0.5,ema=0": 0.5 + 0.25,
    "fixed-k": None,
}


@pytest.mark.parametrize(("spec", "expected"), EXPECTED.items())
def test_a_policy_expects_what_its_chances_come_to(
    spec: str, expected: float | None, tmp_path: Path
) -> None:
    """The draft's likeliest token is right in half of the places, its second in a quarter, and it says so.

    Sequoia was told of a fifth.
    """
    deployment = load("adaspec-l40", ())
    assert deployment is not None
    prompts, spec = (
        SyntheticPrompts(requests=1, output_tokens=30),
        spec.format(**filled_in(tmp_path)),
    )
    (record,) = prompts.decode(spec, deployment, "ranks=0.5+0.25,spread=0")
    assert {step.expected for step in record.rounds[:-3]} == {expected}


def test_expected_and_accepted_are_over_the_same_rounds() -> None:
    first, second, silent = (make_round(4, accepted=accepted, end_s=1.0) for accepted in (1, 3, 4))
    first.expected, second.expected = 2.5, 3.5
    records = [make_record("a", first, silent), make_record("b", second)]
    overall = summarise(RequestGroup(records), makespan_s=2.0)["overall"]
    assert [overall[name] for name in EXPECTED_RATIOS] == [3.0, 2.0, 1.5]
    assert "| `expectation_bias` | 1.50x" in render(make_run(), summary_of(records), records)
    silent_alone = [make_record("c", silent)]
    assert (
        not EXPECTED_RATIOS.keys()
        & summarise(RequestGroup(silent_alone), makespan_s=1.0)["overall"].keys()
    )
