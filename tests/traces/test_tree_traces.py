"""Trees replay on a trace that was recorded for them, to exactly the rounds and times of a live run."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from environments import DEPLOYMENT, ENVIRONMENT
from method_specs import filled_in
from msgspec import structs
from nightly import nightly_except
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    tiny_llama,
    with_references,
)
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.candidate_trees import BeyondRecord, CandidateColumns
from specbench_kit.traces.recording import TraceRecorder, slot_length
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceFile, TraceHeader
from specbench_kit.traces.tree_recording import TREE_TOKENS, TreeRecorder
from specbench_kit.traces.writing import TraceWriter

MAX_DRAFT, NEW_TOKENS, CAPACITY = 6, 16, 256
EOS = frozenset({3})
RECORDED = (
    *(f"specedge:depth={depth}" for depth in (1, 2, 3, 5)),
    "server-tree:depth=16",
    "opt-tree",
    "eagle2-tree",
    "specinfer",
    "specinfer:guesses=3",
    "sequoia:ranks={ranks}",
    "autodraft:nodes=12,step=12,max_depth=3",
)
REPLAYED = (
    "specedge",
    "specedge:depth=3",
    "specedge:tree=chain,depth=2,proactive=false",
    "server-tree",
    "opt-tree",
    "opt-tree:nodes=20,gain=0.2",
    "eagle2-tree",
    "eagle2-tree:cost=measured",
    "specinfer",
    "specinfer:guesses=3",
    "sampled-tree",
    "sequoia:ranks={ranks}",
    "autodraft:nodes=12,step=4,max_depth=3",
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the values of the placeholders in specs."""
    return filled_in(tmp_path_factory.mktemp("places"))


@pytest.fixture(scope="module")
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    target = tiny_llama()
    return target, disturbed(target, 0.03)


@pytest.fixture(scope="module")
def answers(models) -> dict[str, RequestRecord]:
    requests = make_requests(clear_prompts(models[0], (3, 7, 1), NEW_TOKENS), NEW_TOKENS)
    return decode(
        AUTOREGRESSIVE, [make_runner(model, 3, CAPACITY) for model in models], requests, eos_ids=EOS
    )


@pytest.fixture(scope="module")
def header(places) -> TraceHeader:
    trees = tuple(spec.format(**places) for spec in RECORDED)
    return TraceHeader(
        MAX_DRAFT, 0.001, (0.01,) * (MAX_DRAFT + 1), {"models": {}}, capacity=CAPACITY, trees=trees
    )


@pytest.fixture(scope="module")
def traces(models, answers, header) -> list[RequestTrace]:
    target = make_runner(models[0], 1, CAPACITY)
    chain_draft = make_runner(models[1], 1, slot_length(20, NEW_TOKENS, MAX_DRAFT))
    chains = TraceRecorder(target, chain_draft, MAX_DRAFT, TREE_TOKENS)
    methods = [
        parse_method(spec).prepare(replace(ENVIRONMENT, server_decodes=False))
        for spec in header.trees
    ]
    first = next(iter(answers.values()))
    # So small a slot is full several times.
    trees = TreeRecorder(make_runner(models[1], 1, 700), methods, header, first.prompt_ids)
    recorded = [chains.trace(record) for record in answers.values()]
    return [replace(trace, candidates=trees.columns(trace)) for trace in recorded]


def rounds(records: Iterable[RequestRecord]) -> dict[str, list[dict[str, object]]]:
    """Return everything that a run writes of its rounds, times included."""
    return {record.request_id: list(map(structs.asdict, record.rounds)) for record in records}


@pytest.mark.parametrize("spec", nightly_except(REPLAYED[::2], REPLAYED))
def test_a_replayed_tree_equals_the_live_one(spec, places, models, answers, header, traces) -> None:
    method = parse_method(spec.format(**places)).prepare(ENVIRONMENT)
    requests = make_requests([record.prompt_ids for record in answers.values()], NEW_TOKENS)
    runners = [make_runner(model, 1, CAPACITY) for model in models]
    live = decode(
        method, runners, with_references(requests, answers), eos_ids=EOS, deployment=DEPLOYMENT
    )
    replayed = list(replay(method, header, traces, deployment=DEPLOYMENT))
    assert rounds(replayed) == rounds(live.values())
    assert {r.request_id: r.output_ids for r in replayed} == {
        r.request_id: r.output_ids for r in live.values()
    }


def test_the_trees_are_not_trivial(traces: list[RequestTrace]) -> None:
    """Trees accept tokens off the draft model's first choices, and end in different depths."""
    columns = [trace.candidates for trace in traces]
    assert all(len(own.counts) > 10 * own.trunk > 0 for own in columns)
    assert any((np.array(trace.output_ids) != trace.drafted[:, 0]).mean() > 0.1 for trace in traces)


def test_a_tree_beyond_the_record_is_an_error_that_says_so(header, traces) -> None:
    for spec in ("specinfer:branching=60-1", "sampled-tree:branching=1-30-2"):
        method = parse_method(spec).prepare(ENVIRONMENT)
        with pytest.raises(
            BeyondRecord,
            match="asks for more of the draft model than the trace holds, which has the",
        ):
            list(replay(method, header, traces, deployment=DEPLOYMENT))


def test_what_no_trace_of_trees_holds_is_refused(header, traces) -> None:
    for spec in ("specpipe", "adaptive-quantised"):
        with pytest.raises(SkitError, match="cannot be replayed"):
            list(replay(parse_method(spec).prepare(ENVIRONMENT), header, traces))
    with pytest.raises(SkitError, match="--trees"):
        list(replay(parse_method("opt-tree"), structs.replace(header, trees=()), traces))


def test_chains_replay_on_a_trace_of_trees_as_on_one_of_chains(header, traces) -> None:
    plain = [replace(trace, candidates=CandidateColumns()) for trace in traces]
    method = parse_method("threshold:max_draft=6")
    without = list(replay(method, structs.replace(header, trees=()), plain))
    assert rounds(replay(method, header, traces)) == rounds(without)


def test_a_batch_of_trees_has_the_rounds_of_single_requests(header, traces) -> None:
    method = parse_method("specedge:depth=3")
    alone, together = (rounds(replay(method, header, traces, batch_size=size)) for size in (1, 4))
    for name, own in alone.items():
        assert [(r["submitted"], r["path"], r["parents"]) for r in together[name]] == [
            (r["submitted"], r["path"], r["parents"]) for r in own
        ]


def test_candidates_survive_their_file(tmp_path: Path, header, traces) -> None:
    path = tmp_path / "trees.parquet"
    with TraceWriter(path, header) as writer:
        for trace in traces:
            writer.append(trace)
    file = TraceFile(path)
    assert file.header.trees == header.trees
    assert [stored.candidates for stored in file] == [trace.candidates for trace in traces]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda own: {"counts": own.counts[:-1]}, "parts are missing"),
        (lambda own: {"tokens": -own.tokens}, "no tokens"),
        (lambda own: {"logprobs": own.logprobs + np.float32(np.nan)}, "no probabilities"),
        (lambda own: {"counts": own.counts[::-1]}, "node before its parent"),
    ],
)
def test_candidates_that_cannot_be_true_are_refused(change, says: str, traces) -> None:
    text = len(traces[0].output_ids) + len(traces[0].continuation)
    assert traces[0].candidates.fault(text) == ""
    assert "every place" in traces[0].candidates.fault(text + 1)
    assert says in replace(traces[0].candidates, **change(traces[0].candidates)).fault(text)
