"""Plain decoding across a link: streamed by the server it pays the link once, token by token every time."""

from itertools import pairwise

import pytest
from report_builders import deployment_description, run_document
from tiny_models import decode, disturbed, make_requests, make_runner, random_prompts, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import load
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.setting import STREAMED, plain_decoding
from specbench_kit.predictors.library import PairHashes
from specbench_kit.reports.sections import baseline
from specbench_kit.runs.deployment import Link


def test_only_the_first_streamed_token_waits_for_the_link() -> None:
    deployment = load("wan", ["link.jitter_s=0"])
    assert deployment is not None
    target = tiny_llama()
    runners = make_runner(target, 1, 64), make_runner(disturbed(target, 0.02), 1, 64)
    requests = make_requests(random_prompts([5], 64), 12)
    (streamed,), (requested,) = (
        decode(parse_method(spec), runners, requests, deployment=deployment).values()
        for spec in ("autoregressive", "round-trips")
    )
    assert streamed.output_ids == requested.output_ids
    assert streamed.ttft_s == pytest.approx(requested.ttft_s, rel=1e-3)
    gaps = [
        [later.end_s - step.end_s for step, later in pairwise(record.rounds)]
        for record in (streamed, requested)
    ]
    assert all(step.link_s == 0 for step in streamed.rounds[1:])
    assert [with_link - plain for plain, with_link in zip(*gaps, strict=True)] == pytest.approx(
        [deployment.link.rtt_s] * 11, rel=1e-3
    )


def test_it_is_a_method_of_links_and_no_baseline() -> None:
    assert methods.get("round-trips").group == "bounds"
    with pytest.raises(
        SkitError, match="round-trips: there is no link to cross: add --deployment NAME or --server"
    ):
        parse_method("round-trips").prepare(environment(PairHashes("a", "b"), None))


def test_a_report_says_what_its_speedups_are_relative_to() -> None:
    modelled = run_document({"config": {"baseline": True}})
    modelled.deployment = deployment_description(link=Link(rtt_s=0.04))
    live = run_document({"server": {"baseline": "streamed"}, "config": {"baseline": True}})
    local = run_document({"config": {"baseline": True}})
    pipeline = run_document({})
    pipeline.deployment = deployment_description(link=Link())
    assert [plain_decoding(run) for run in (modelled, live, local, pipeline)] == [
        STREAMED,
        STREAMED,
        None,
        None,
    ]
    assert baseline.words(live) == "autoregressive decoding at the server, streamed"
    ((_, text),) = baseline.facts(modelled)
    assert text.startswith("AR at the server, streamed: ")
