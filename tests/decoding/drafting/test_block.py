"""A drafter of one forward: its modelled time, its acceptance by position, and its replay."""

from itertools import islice
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    tiny_llama,
)
from tiny_predictors import PAIR

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import parse_drafter
from specbench_kit.decoding.latency import TableModel
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceFile

DRAFT_S = 0.001
DEPLOYMENT = Deployment(
    "test",
    drafter=Endpoint("edge", TableModel((DRAFT_S,))),
    verifier=Endpoint("server", TableModel((0.01,))),
    cached_prompts=True,
)
REQUESTS = make_requests([[1, 2, 3], [4], [5, 6]], 30)


@pytest.fixture(scope="module")
def runners() -> tuple[Runner, Runner]:
    model = tiny_llama(0)
    return make_runner(model, 3, 96), make_runner(disturbed(model, 0.005), 3, 96)


def rounds(spec: str, runners: tuple[Runner, Runner], batch_size: int = 1) -> list[RoundRecord]:
    """Return the rounds of greedy decoding, whose output is plain decoding's."""
    plain = decode(AUTOREGRESSIVE, runners, REQUESTS)
    records = decode(
        parse_method(spec), runners, REQUESTS, batch_size=batch_size, deployment=DEPLOYMENT
    )
    assert outputs(records) == outputs(plain)
    return [step for name in sorted(records) for step in records[name].rounds]


@pytest.mark.parametrize(("size", "forwards"), [(4, 1), (2, 2), (3, 2), (1, 4)])
def test_a_block_takes_the_time_of_one_forward(
    size: int, forwards: int, runners: tuple[Runner, Runner]
) -> None:
    steps = rounds(f"fixed-k:k=4,drafter=block.size={size}", runners)
    assert {round(step.draft_s, 9) for step in steps} == {forwards * DRAFT_S}


def test_tokens_are_the_models_own_where_all_are_kept(runners: tuple[Runner, Runner]) -> None:
    block, model = (
        rounds(spec, runners) for spec in ("fixed-k:k=4,drafter=block", "fixed-k:k=4,proposal=top")
    )
    assert [step.accepted for step in block] == [step.accepted for step in model]
    assert sum(step.accepted for step in block) > 20


def test_acceptance_is_lost_from_the_position_on_at_which_tokens_are_replaced(
    runners: tuple[Runner, Runner],
) -> None:
    accepted = [step.accepted for step in rounds("fixed-k:k=4,drafter=block.keep=1-1-0", runners)]
    assert max(accepted) == 2
    assert (
        sum(step.accepted for step in rounds("fixed-k:k=4,drafter=block.keep=0", runners))
        < len(accepted) / 10
    )
    assert (
        max(step.accepted for step in rounds("fixed-k:k=4,drafter=block.size=2+keep=1-0", runners))
        == 1
    )


def test_a_batch_replaces_the_same_tokens(runners: tuple[Runner, Runner]) -> None:
    spec = "fixed-k:k=4,drafter=block.keep=1-0.5"
    alone, together = ([step.accepted for step in rounds(spec, runners, size)] for size in (1, 3))
    assert alone == together


def test_a_trace_of_the_model_replays_as_blocks() -> None:
    trace = TraceFile(Path("qwen2.5-coder"))
    rounds_of_traces = []
    for spec in ("fixed-k:k=4,drafter=block.size=4", "fixed-k:k=4"):
        method = prepare_for_replay(parse_method(spec), trace, DEPLOYMENT)
        records = list(replay(method, trace.header, islice(trace, 3), deployment=DEPLOYMENT))
        rounds_of_traces.append([step for record in records for step in record.rounds])
    blocks, chains = rounds_of_traces
    assert [step.accepted for step in blocks] == [step.accepted for step in chains]
    assert sum(step.draft_s for step in chains) == pytest.approx(
        4 * sum(step.draft_s for step in blocks)
    )


def test_a_method_that_weighs_time_counts_a_part_of_a_forward_per_token() -> None:
    draft_seconds = []
    for spec in ("vllm-adaptive:max_draft=4", "vllm-adaptive:max_draft=4,drafter=block.size=4"):
        method = parse_method(spec).prepare(environment(PAIR, DEPLOYMENT))
        assert isinstance(method, LatencyAware)
        assert method.latencies is not None
        draft_seconds.append(method.latencies.draft.seconds([(1, 20)]))
    assert draft_seconds == [DRAFT_S, DRAFT_S / 4]


def test_a_replaced_token_has_the_statistics_of_the_models(runners: tuple[Runner, Runner]) -> None:
    """A stop rule reads the same statistics, and so stops at the same place, whichever tokens are replaced."""
    unchanged, replaced = (
        rounds(f"threshold:max_draft=4,drafter=block.keep={keep}", runners)[0].submitted
        for keep in (1, 0)
    )
    assert unchanged == replaced


def test_measured_time_and_bad_options_are_refused_in_one_line() -> None:
    refused = skit_here(
        "bench", "--target", "bundled", "--method", "fixed-k:drafter=block", "--limit", 1
    )
    assert "drafter 'block' has no time of its own: add --deployment NAME" in error_line(refused)
    for options, words in (
        ("size=0", "size must be at least 1"),
        ("keep=1-2", "keep must have shares in 0..1"),
    ):
        with pytest.raises(SkitError, match=words):
            parse_drafter(f"block.{options}")


def test_a_report_says_that_no_drafter_of_one_forward_has_run(tmp_path: Path) -> None:
    setting = (
        "--target",
        "bundled",
        "--limit",
        2,
        "--max-new-tokens",
        8,
        "--deployment",
        "wan",
        "--out",
        tmp_path,
    )
    told = skit_here(
        "bench", "--method", "fixed-k:k=4,drafter=block", "--method", "fixed-k:k=2", *setting
    ).stdout
    words = " ".join(told.split())
    assert (
        "MODELLED DRAFTER: fixed-k:k=4,drafter=block drafts the draft model's own tokens, several in"
        in words
    )
    assert words.count("MODELLED DRAFTER") == 1, "the other method drafts as the draft model does"


def test_a_block_is_written_as_it_is_read() -> None:
    drafting = parse_drafter("block.size=4+keep=1-0.5")
    assert parse_drafter(drafting.spec) == drafting
