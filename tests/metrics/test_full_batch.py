"""The speed of a batch while all of its places are taken."""

from pathlib import Path

import pytest
from environments import DEPLOYMENT
from trace_builders import MODELS, made_requests, write_trace

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.full_batch import full_batch
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceFile


def answer(name: str, admitted_s: float, commits_s: tuple[float, ...]) -> RequestRecord:
    """A request whose tokens come one by one, at these times after its admission."""
    rounds = [RoundRecord(0, 0, 0, 1, *(0.0,) * 7, end_s=moment_s) for moment_s in commits_s]
    record = RequestRecord(name, "test", [1], rounds=rounds)
    record.finish([1] * len(rounds), "length", admitted_s + commits_s[-1])
    return record


def test_it_is_full_from_the_first_answers_to_the_last_admission() -> None:
    """Two places: full from 2 s, when b has its first token, until d is admitted at 6 s."""
    records = [
        answer("a", 0.0, (1.0, 3.0, 5.0)),
        answer("b", 0.0, (2.0, 4.0, 6.0)),
        answer("c", 5.0, (0.5, 2.0)),
        answer("d", 6.0, (0.5, 1.0)),
    ]
    full = full_batch(records, 2)
    assert full is not None
    assert full.throughput == (2 + 2 + 1) / 4  # a at 3 and 5, b at 4 and 6, c at 5.5
    assert full.tpot_s == 2.0  # a and b ended in that time
    assert full.share == 4 / 7
    assert full_batch(records[:2], 2) is None, "nobody waited"


@pytest.mark.parametrize("size", [1, 8, 64, 256])
def test_plain_decoding_has_the_speed_of_a_step_of_so_many_rows(size: int, tmp_path: Path) -> None:
    """Six different prompts, repeated: nothing of the batch's beginning or end is in the speed."""
    path = write_trace(tmp_path / "trace.parquet", made_requests(6), MODELS).path
    trace = TraceFile(path, fewest=4 * size)
    assert 4 * size <= len(trace) < 4 * size + 6
    method = prepare_for_replay(parse_method("autoregressive"), trace, DEPLOYMENT, batch_size=size)
    records = list(replay(method, trace.header, trace, deployment=DEPLOYMENT, batch_size=size))
    assert len({record.request_id for record in records}) == len(records) == len(trace)
    full = full_batch(records, size)
    assert full is not None
    # 40 tokens each; of them one comes with the prompt, whose three tokens are a step of 3 rows per request.
    step_s, prompt_s = (
        DEPLOYMENT.verifier.latency.seconds([(new, cached)] * size)
        for new, cached in ((1, 23), (3, 0))
    )
    assert full.throughput == pytest.approx(size * 40 / (39 * step_s + prompt_s), rel=0.04)


def test_a_repeated_prompt_is_one_sample(tmp_path: Path) -> None:
    from specbench_kit.metrics.statistics import units_of

    path = write_trace(tmp_path / "trace.parquet", made_requests(6), MODELS).path
    trace = TraceFile(path, limit=5, fewest=12)
    records = [
        RequestRecord(
            request.request_id,
            "test",
            request.prompt_ids,
            request.output_ids,
            dialogue=request.dialogue,
        )
        for request in trace
    ]
    assert len(records) == 15
    assert len(set(units_of(records).values())) == 5
