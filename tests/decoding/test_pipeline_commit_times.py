"""When a pipeline's tokens come, counted from the arrival of their own request."""

import pytest
from tiny_models import decode, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link


def test_the_second_request_of_a_run_starts_its_own_count() -> None:
    """The target drafts for itself, so all but the first token come a step apart; a step is a stage's 50 ms."""
    model = tiny_llama(0)
    runners = make_runner(model, 2, 64), make_runner(model, 2, 64)
    scene = Deployment(
        "scene",
        Endpoint("edge", InteractionModel(0, 0, 0, 0.01)),
        Endpoint("server", InteractionModel(0, 0, 0, 0.1), stages=2),
        Link(),
        placement="server",
    )
    (prompt,) = random_prompts([5], 64)
    requests = make_requests([prompt, prompt], 4)
    records = decode(
        parse_method("specpipe:stages=2,width=1,children=1"), runners, requests, deployment=scene
    )
    for record in records.values():
        (only,) = record.rounds
        assert only.commits_s == pytest.approx([0.10, 0.15, 0.20, 0.25])
        assert (record.ttft_s, record.e2e_s) == (pytest.approx(0.10), pytest.approx(0.25))
    assert records["001"].finished_s == pytest.approx(2 * 0.25)
