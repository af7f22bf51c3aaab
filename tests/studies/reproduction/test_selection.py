"""ConfigSpec's choice of draft model and draft length, by hand, and why both prices end at the shortest draft."""

from functools import partial
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.papers.experiment import experiments
from specbench_kit.studies.reproduction.laws import LAWS
from specbench_kit.studies.reproduction.selection import (
    Selection,
    _survival,
    expected_tokens,
    select,
    selected_drafter,
    selected_length,
    selected_length_on_trace,
)
from specbench_kit.traces.trace import TraceFile

RATES = (0.5, 0.8)
STEPS_S = (0.01, 0.04)


def chosen(objective: str, answer_s: float = 0.1, shortest: int = 1) -> Selection:
    """Two models: one that is right half of the time at 10 ms a token, one of 80% at 40 ms."""
    tokens = [partial(expected_tokens, rate) for rate in RATES]
    return select(objective, tokens, STEPS_S, answer_s, range(shortest, 5))


def test_each_objective_is_worked_out_by_hand() -> None:
    """Tokens of 1 to 4 drafted ones: 1.5, 1.75, 1.875, 1.9375 and 1.8, 2.44, 2.952, 3.3616.

    Per second with 100 ms to the verdict: 13.64, 14.58, 14.42, 13.84 and 12.86, 13.56, 13.42, 12.93.
    Per verified token from two on: .875 at most and 1.22; per second of drafting 87.5 and 30.5.
    """
    assert chosen("goodput") == (0, 2)
    assert chosen("goodput", answer_s=1.0) == (1, 4)
    assert chosen("cost", shortest=2) == (1, 2)
    assert chosen("energy", shortest=2) == (0, 2)


@pytest.mark.parametrize("objective", ["cost", "energy"])
@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_cost_and_energy_are_best_at_the_shortest_draft_that_may_be_chosen(
    objective: str, shortest: int
) -> None:
    assert chosen(objective, shortest=shortest).length == shortest


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(SkitError, match="the objective is one of goodput, cost, energy"):
        chosen("speed")


def test_the_selection_of_the_library_is_the_law_with_its_models_in_the_order_of_size() -> None:
    series = dict(experiments()["configspec/selection"].options["series"])
    pi = {**series["Raspberry Pi 5, cost: drafter"]}
    assert LAWS[pi.pop("law")] is selected_drafter
    assert selected_drafter(**pi) == 1.0
    assert selected_drafter(**{**pi, "objective": "energy"}) == 0.0
    lengths = [
        selected_length(**{**pi, "objective": "goodput", "answer_s": answer_s, "shortest": 1})
        for answer_s in (0.1, 0.5, 2.0)
    ]
    assert lengths == sorted(set(lengths))


def test_survival_of_the_pair_is_that_of_its_recorded_drafts() -> None:
    trace = TraceFile(Path("qwen2.5-coder"))
    survival = _survival(trace)
    assert len(survival) == trace.header.max_draft
    assert survival == sorted(survival, reverse=True)
    first = [
        request.drafted[offset][0] == token
        for request in trace
        for offset, token in enumerate(request.output_ids)
    ]
    assert survival[0] == pytest.approx(sum(first) / len(first))
    inputs = {"trace": "qwen2.5-coder", "model": "q4_k_m:qwen2.5-coder-0.5b"}
    place = {"device": "raspberry-pi-4b", "software": "llama.cpp-cpu", "shortest": 1}
    near, far = (
        selected_length_on_trace(objective="goodput", answer_s=answer_s, **inputs, **place)  # type: ignore[arg-type]
        for answer_s in (0.1, 0.5)
    )
    assert near < far
