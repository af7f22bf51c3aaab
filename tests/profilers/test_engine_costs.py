"""What serving engines add around forwards: ranges with sources, on top of what a card takes."""

from dataclasses import replace

import pytest
from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import (
    BatchSums,
    InteractionModel,
    RoundedModel,
    in_graphs,
    sums_of,
)
from specbench_kit.deployments.description import corners, describe, restore
from specbench_kit.deployments.loading import find, parse
from specbench_kit.deployments.placing import with_engine_times
from specbench_kit.methods.spec import parse_method
from specbench_kit.profilers.derived_run import shared_profile
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.engine_costs import (
    FAST,
    SLOW,
    bundled_engine_costs,
    find_engine_costs,
    launched_for,
)
from specbench_kit.profilers.subject import find_subject

CARD = RoundedModel(
    token_s=1e-6, pair_s=0.0, head_s=0.0, weights_s=5e-3, kv_s=0.0, forward_s=0.0, corner=1.0
)
ROW = [(1, 500)]
SCENE = "server:gpu=h100,target=llama3.1-8b,drafter=llama3.2-1b,engine=vllm-0.10"


@pytest.mark.parametrize("name", bundled_engine_costs())
def test_no_engine_is_free_and_every_cost_has_its_source(name: str) -> None:
    costs = find_engine_costs(name)
    assert costs.step_s[SLOW] > 0
    for cost, (least, typical, most) in costs.ranges.items():
        assert least <= typical <= most
        assert bool(costs.sources.get(cost)) == (most > 0), cost


def test_costs_without_a_source_or_out_of_order_are_refused() -> None:
    costs = find_engine_costs("vllm")
    with pytest.raises(ValueError, match="head_s must rise"):
        structs.replace(costs, head_s=(2e-3, 1e-3, 3e-3))
    with pytest.raises(ValueError, match="sources must say where step_s comes from"):
        structs.replace(costs, sources={})


def test_a_step_takes_the_card_the_host_and_what_speculation_adds() -> None:
    costs = structs.replace(
        find_engine_costs("vllm"),
        step_s=(1e-3, 2e-3, 3e-3),
        request_s=(0.0, 1e-5, 2e-5),
        speculating_step_s=(0.0, 1e-3, 2e-3),
        speculating_request_s=(0.0, 1e-5, 2e-5),
        speculating_share=(0.0, 0.1, 0.2),
    )
    card_s = 5e-3 + 1e-6
    alone = costs.beside_target(CARD, 32, "here")
    busy = costs.while_speculating(CARD, 32, "here")
    assert alone.seconds(ROW) == pytest.approx(card_s + 2e-3 + 1e-5)
    assert busy.seconds(ROW) == pytest.approx(1.1 * card_s + 3e-3 + 2e-5)
    assert costs.while_speculating(CARD, 32, "here", SLOW).seconds(ROW) == pytest.approx(
        1.2 * card_s + 5e-3 + 4e-5
    )
    assert costs.beside_target(CARD, 32, "here", FAST).seconds(ROW) == pytest.approx(card_s + 1e-3)


def test_a_step_is_padded_to_the_next_captured_graph_and_no_step_beyond_them() -> None:
    costs = structs.replace(
        find_engine_costs("vllm"),
        step_s=(0.0, 0.0, 0.0),
        request_s=(0.0, 0.0, 0.0),
    )
    card = replace(CARD, weights_s=0.0, token_s=1e-3)
    padded = costs.beside_target(card, 1, "here")
    tokens = {1: 1, 3: 4, 5: 8, 9: 16, 200: 200, 257: 272, 512: 512, 513: 513}
    for given, computed in tokens.items():
        assert padded.seconds([(1, 100)] * given) == pytest.approx(computed * 1e-3), given
    # Five requests with four tokens each are a graph of 24 tokens; the mean length of what they attend to stays.
    rows = [(4, 100)] * 5
    sums = in_graphs(sums_of(rows), costs.graphs, of_requests=False)
    assert sums.linear == 24
    assert sums.interactions / sums.linear == pytest.approx(104)
    assert padded.seconds(rows) == pytest.approx(24e-3)


def test_graphs_of_requests_pad_every_token_of_a_request() -> None:
    costs = structs.replace(
        find_engine_costs("sglang"),
        step_s=(0.0, 0.0, 0.0),
        request_s=(0.0, 0.0, 0.0),
        speculating_step_s=(0.0, 0.0, 0.0),
        speculating_request_s=(0.0, 0.0, 0.0),
    )
    card = replace(CARD, weights_s=0.0, token_s=1e-3)
    rows = [(4, 100)] * 5
    # Plain decoding pads five requests to eight, speculation, which has more graphs, not at all.
    assert costs.beside_target(card, 1, "here").seconds(rows) == pytest.approx(32e-3)
    assert costs.while_speculating(card, 1, "here").seconds(rows) == pytest.approx(20e-3)
    # A prompt in the step is computed without a graph.
    with_prompt = [*[(1, 100)] * 4, (300, 0)]
    assert costs.beside_target(card, 1, "here").seconds(with_prompt) == pytest.approx(304e-3)


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        (((8, 3),), "must end each step at a multiple"),
        (((8, 4), (8, 8)), "must rise"),
        (((0, 1),), "must end each step"),
    ],
)
def test_graphs_that_make_no_sense_are_refused(
    graphs: tuple[tuple[int, int], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        structs.replace(find_engine_costs("vllm"), graphs=graphs)


def test_what_is_launched_follows_from_the_drafters_name() -> None:
    names = (
        "eagle3:llama3.1-8b",
        "mtp:qwen3-32b",
        "block:qwen3-8b",
        "llama3.2-1b",
        "4bit:llama2-7b",
    )
    launched = ["head", "head", "block", "draft model", "draft model"]
    assert list(map(launched_for, names)) == launched
    costs = find_engine_costs("vllm-0.10")
    seconds = [costs.beside_drafter(CARD, 1, launched_for(name), "").seconds(ROW) for name in names]
    assert seconds[0] < seconds[3]


def test_measured_times_have_their_engine_in_them() -> None:
    measured = InteractionModel(0.0, 0.0, 0.0, 0.01)
    with pytest.raises(SkitError, match="verifier: an engine's costs belong to derived profiles"):
        find_engine_costs("vllm").beside_target(measured, 32, "verifier")


def test_a_server_in_one_line_is_what_its_file_would_be() -> None:
    scene = find(SCENE).build()
    written = parse(find(SCENE).content, find(SCENE).path, "a file")
    assert scene == written
    assert restore(describe(scene)) == scene
    # A step of a Llama-8B takes 5.9 ms of kernels and 1.2 ms of the host on an H100.
    plain_s = scene.verifier.latency.seconds(ROW)
    assert plain_s == pytest.approx(7.37e-3, rel=0.01)
    assert scene.verifier.while_speculating.latency.seconds(ROW) > plain_s


def test_only_methods_that_draft_pay_for_speculation_at_every_end_of_the_range() -> None:
    scene = find(SCENE).build()
    for deployment in (scene, *(end for _, end in corners(scene))):
        plain = with_engine_times(parse_method("autoregressive"), deployment)
        drafting = with_engine_times(parse_method("fixed-k"), deployment)
        assert plain == deployment
        assert drafting.verifier.latency == deployment.verifier.speculating
    slow = dict(corners(scene))["slow drafter, slow verifier"]
    assert slow.verifier.latency.seconds(ROW) > scene.verifier.latency.seconds(ROW)


def test_fields_of_the_host_go_before_those_of_the_engine() -> None:
    definition = find(SCENE).replace({"verifier.host_s": 0.004})
    deployment = definition.build()
    ends = [end.verifier for _, end in corners(deployment)]
    for endpoint in (deployment.verifier, *ends):
        assert isinstance(endpoint.latency.host_s, float)  # type: ignore[attr-defined]
        assert endpoint.latency.host_s == 0.004  # type: ignore[attr-defined]
        assert endpoint.speculating is not None
        assert endpoint.speculating.host_s == 0.004  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("server:gpu=h100,target=llama3.1-8b", "server: option 'drafter' has to be given"),
        ("server:gpu=h100,target=llama3.1-8b,drafter=eagle3,engine=vlm", "unknown engine 'vlm'"),
        ("server:gpu=h1000,target=llama3.1-8b,drafter=eagle3", "unknown GPU 'h1000'"),
        ("server:gpu=h100,target=llama9,drafter=eagle3", "llama9"),
        ("server:gpu=h100,target=llama3.1-8b,drafter=eagle3,cards=0", "cards and draft_cards must"),
        ("server:gpu=rtx3060,target=llama3.1-405b,drafter=eagle3", "GB of weights on each card"),
    ],
)
def test_a_wrong_line_is_told_in_one(spec: str, message: str) -> None:
    with pytest.raises(SkitError, match=message):
        find(spec).build()


def test_a_derived_profile_has_the_host_of_its_engine_and_the_engines_range() -> None:
    card, subject = find_device("h100"), find_subject("llama3.1-8b", "target")
    profile = shared_profile(card, 1, subject)
    costs = find_engine_costs("vllm")
    assert profile.coefficients["host_s"] == costs.step_s[1]
    assert profile.fast is not None
    assert profile.slow is not None
    assert profile.fast.coefficients["host_s"] == costs.step_s[0]
    assert profile.slow.coefficients["host_s"] == costs.step_s[2]


def test_kernels_that_take_tokens_one_by_one_cost_by_width_and_jump() -> None:
    narrow = replace(CARD, narrow=8.0, narrow_token_s=2e-3, wider_s=6e-3)
    seconds = [narrow.seconds([(width, 500)]) for width in (1, 2, 8, 9, 12)]
    free = [CARD.seconds([(width, 500)]) for width in (1, 2, 8, 9, 12)]
    more = [own - other for own, other in zip(seconds, free, strict=True)]
    assert more == pytest.approx([0.0, 2e-3, 14e-3, 6e-3, 6e-3])
    assert sum(narrow.parts(_sums(8)).values()) == pytest.approx(seconds[2])


def _sums(width: int) -> BatchSums:

    return sums_of([(width, 500)])
