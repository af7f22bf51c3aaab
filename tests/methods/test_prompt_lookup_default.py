"""The draft length of `prompt-lookup` comes from the verification's times unless it is stated."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import read_object, skit_here
from environments import DEPLOYMENT, ENVIRONMENT
from trace_builders import made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import InteractionModel, LatencyModel, TableModel
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.base import Environment
from specbench_kit.methods.prompt_lookup import UNKNOWN_LENGTH, PromptLookup
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link


def at_cost(per_token: float) -> LatencyModel:
    """Return a verification whose every further token takes a share of the time of the first."""
    return InteractionModel(per_token, 0.0, 0.0, 1.0 - per_token)


def length_in(surroundings: Environment, spec: str = "prompt-lookup") -> int:
    rule = parse_method(spec).prepare(surroundings).policy().stop_rule
    assert rule is not None
    return rule.most


def with_verification(model: LatencyModel | None, **others: float) -> Environment:
    return replace(ENVIRONMENT, verification=lambda: model, **{"link_s": 0.0, **others})


SPEEDS = {
    0.002: (1.256, 1.362, 1.415, 1.448, 1.470, 1.485, 1.494, 1.501, 1.506, 1.510),
    0.03: (1.234, 1.318, 1.350, 1.362, 1.364, 1.359, 1.349, 1.338, 1.326, 1.313),
    0.08: (1.197, 1.246, 1.246, 1.231, 1.207, 1.180, 1.151, 1.121, 1.093, 1.065),
    0.15: (1.149, 1.158, 1.126, 1.085, 1.040, 0.996, 0.955, 0.913, 0.878, 0.842),
}
"""Tokens per time of a plain round of SmolLM2's answers with drafts of 1 to 10 tokens, by the cost of a further token
in plain rounds; lengths 7 and 9 lie between their neighbours."""


@pytest.mark.parametrize("per_token", SPEEDS)
def test_the_chosen_length_reaches_99_percent_of_the_best(per_token: float) -> None:
    speeds = SPEEDS[per_token]
    assert speeds[length_in(with_verification(at_cost(per_token))) - 1] >= 0.99 * max(speeds)


def test_the_dearer_a_token_the_shorter_the_draft() -> None:
    lengths = [
        length_in(with_verification(at_cost(cost))) for cost in (0.001, 0.01, 0.03, 0.05, 0.1, 0.5)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (10, 1)


def test_a_link_pays_for_longer_drafts_and_a_batch_for_shorter_ones() -> None:
    alone = length_in(with_verification(at_cost(0.08)))
    assert length_in(with_verification(at_cost(0.08), link_s=5.0)) > alone
    assert length_in(with_verification(at_cost(0.08), batch_size=16)) < alone
    far = environment(ENVIRONMENT.pair, replace(DEPLOYMENT, link=Link(rtt_s=1.0)))
    assert length_in(far) > length_in(
        environment(ENVIRONMENT.pair, replace(DEPLOYMENT, link=Link()))
    )


def test_no_length_is_chosen_that_the_recorded_times_do_not_cover() -> None:
    assert length_in(with_verification(TableModel((1.0, 1.0, 1.0, 1.0)))) == 3


def test_a_stated_length_is_meant_and_an_unknown_verification_has_a_default() -> None:
    assert length_in(with_verification(at_cost(0.5)), "prompt-lookup:k=10") == 10
    assert length_in(with_verification(None)) == UNKNOWN_LENGTH
    assert parse_method("prompt-lookup:k=10").prepare(ENVIRONMENT).uses() == {}
    with pytest.raises(SkitError, match="k must be at least 1, not 0"):
        PromptLookup(k=0)


def test_a_run_states_the_length_that_was_chosen(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(2)).path
    options = (
        "--replay",
        trace,
        "--deployment",
        "wan",
        "--method",
        "prompt-lookup",
        "--out",
        tmp_path / "out",
    )
    done = skit_here("bench", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    run = read_object(folder / "run.json")
    assert run["options"]["k"] in range(1, 11)
    assert run["uses"] == {"k_by": "verification times"}
    assert f"prompt-lookup (k={run['options']['k']})" in " ".join(done.stdout.split())
