"""Acceptance that other tools recorded, as traces: they replay to the rounds that those tools would see."""

import json
import os
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import Rows, error_line, read_object, skit_here, write_rows

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.loading import load
from specbench_kit.methods.spec import parse_method
from specbench_kit.serving.acceptance_spec import trace_source
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.interchange.importing import ImportNames, import_trace
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceFile

PUBLISHED = Path(
    os.environ.get("SKIT_DATA_DIR", ""), "specdecode_bench", "combined_instructcoder.jsonl"
)
WAN = load("wan")


def offsets(name: str, acc_len: list[int], **fields: object) -> dict[str, Any]:
    """Return a request in the layout of SpecDecode-Bench's simulator."""
    answer_ids = [100 + offset % 7 for offset in range(len(acc_len))]
    plain = {"id": name, "prompt_token_ids": [1, 2, 3], "generated_token_ids": answer_ids}
    return plain | {"acc_eagle": {"acc_len": acc_len}} | fields


def response(
    name: str, accepted: list[int], drafted: list[int], **fields: object
) -> dict[str, Any]:
    """Return a response of vLLM with detailed acceptance."""
    longest = max(drafted)
    counts = {
        "mean_acceptance_length": 1 + sum(accepted) / len(accepted),
        "acceptance_histogram": [accepted.count(count) for count in range(longest + 1)],
        "num_spec_steps": len(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": longest,
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
    }
    usage = {"prompt_tokens": 30, "completion_tokens": 1 + sum(accepted) + len(accepted)}
    return {"id": name, "usage": usage, "metrics": {"speculative_decoding": counts}} | fields


def record(name: str, histogram: dict[str, int]) -> dict[str, Any]:
    """Return a record of AIPerf, which tells how often and not when."""
    steps = sum(histogram.values())
    tokens = 1 + sum((int(count) + 1) * times for count, times in histogram.items())
    counts = {
        "acceptance_histogram": histogram,
        "num_draft_tokens": 5 * steps,
        "num_spec_steps": steps,
    }
    metrics = {
        "input_sequence_length": {"value": 20, "unit": "tokens"},
        "output_sequence_length": {"value": tokens},
    }
    acceptance = {**counts, "num_spec_tokens": 5, "engine": "vllm"}
    return {
        "metadata": {"x_request_id": name},
        "metrics": metrics,
        "spec_decode_acceptance": acceptance,
    }


def imported(
    folder: Path, form: str, *rows: dict[str, object], draft: str | None = None
) -> TraceFile:
    file = write_rows(folder / "file.jsonl", *rows)
    return TraceFile(
        import_trace(file, form, ImportNames(draft=draft), folder / "trace.parquet", ()).path
    )


def replayed(trace: TraceFile, spec: str) -> list[RequestRecord]:
    method = prepare_for_replay(parse_method(spec), trace, WAN)
    return list(replay(method, trace.header, trace, deployment=WAN))


def means(records: list[RequestRecord]) -> tuple[float, float]:
    """Tokens per verification: pooled, and the mean of requests."""
    counts = [(len(record.output_ids), len(record.rounds)) for record in records]
    tokens, rounds = map(sum, zip(*counts, strict=True))
    return tokens / rounds, sum(request_tokens / of for request_tokens, of in counts) / len(counts)


def test_pooled_and_per_request_means_differ(tmp_path: Path) -> None:
    """12 tokens one by one, and 12 tokens in 2 rounds of 6: 24 / 14 pooled, (1 + 6) / 2 as a mean of requests."""
    trace = imported(
        tmp_path, "specdecode-bench", offsets("slow", [1] * 12), offsets("fast", [9] * 12)
    )
    assert means(replayed(trace, "fixed-k:k=5")) == (pytest.approx(24 / 14), 3.5)


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_fixed_length_commits_what_is_accepted_of_it(k: int, tmp_path: Path) -> None:
    random = Random(k)
    lengths = {name: [random.choice([1, 1, 2, 3, 5, 8]) for _ in range(40)] for name in ("a", "b")}
    trace = imported(
        tmp_path, "specdecode-bench", *(offsets(name, acc_len) for name, acc_len in lengths.items())
    )
    for record in replayed(trace, f"fixed-k:k={k}"):
        offset, expected = 0, []
        while offset < 40:
            expected.append(min(lengths[record.request_id][offset], k + 1, 40 - offset))
            offset += expected[-1]
        assert [step.committed for step in record.rounds] == expected
    oracle = replayed(trace, "oracle:max_draft=7")
    assert all(step.accepted == step.submitted for record in oracle for step in record.rounds)


def test_lengths_beyond_the_end_of_an_answer_are_cut_off(tmp_path: Path) -> None:
    """As in the published files of EAGLE: at each offset of the answer the rounds are those of the recorded lengths."""
    random = Random(3)
    beyond = {"a": 0, "b": 4, "c": 11, "d": -2}
    rows, lengths = [], {}
    for name, extra in beyond.items():
        lengths[name] = [random.choice([1, 2, 4, 7]) for _ in range(30 + extra)]
        rows.append(
            offsets(
                name, lengths[name], generated_token_ids=[100 + number % 5 for number in range(30)]
            )
        )
    file = write_rows(tmp_path / "file.jsonl", *rows)
    done = skit_here(
        "import", file, "--format", "specdecode-bench", "--out", tmp_path / "trace.parquet"
    )
    assert done.stdout.splitlines()[:3] == [
        "file.jsonl: taken for SpecDecode-Bench's accepted tokens, without times; 4 requests.",
        "note: 2 of 4 requests have accepted lengths beyond the end of their answer, which are cut off: 15 positions",
        "note: 1 of 4 requests have an answer beyond their last accepted length, which is cut off: 2 positions",
    ]
    trace = TraceFile(tmp_path / "trace.parquet")
    assert [len(request.output_ids) for request in trace] == [30, 30, 30, 28]
    for record in replayed(trace, "fixed-k:k=5"):
        offset, expected = 0, []
        size = len(record.output_ids)
        while offset < size:
            expected.append(min(lengths[record.request_id][offset], 6, size - offset))
            offset += expected[-1]
        assert [step.committed for step in record.rounds] == expected


def test_records_of_aiperf_that_tell_of_no_round_are_counted(tmp_path: Path) -> None:
    kept, plain, warm, broken_off, failed = (record(name, {"0": 2, "5": 1}) for name in "abcde")
    del plain["spec_decode_acceptance"]
    warm["metadata"]["benchmark_phase"] = "warmup"
    broken_off["metadata"]["was_cancelled"] = True
    failed["error"] = {"code": 500, "type": "ServerError", "message": "lost"}
    trace = imported(tmp_path, "aiperf", kept, plain, warm, broken_off, failed)
    (line,) = trace.header.run["files"]
    assert line == (
        "file.jsonl: taken for AIPerf's accepted tokens, without times; 1 request; left out: 1 without "
        "spec_decode_acceptance, 1 of the warm-up, 1 cancelled, 1 failed."
    )


@pytest.mark.skipif(
    not PUBLISHED.is_file(), reason="SKIT_DATA_DIR holds no data of SpecDecode-Bench"
)
def test_the_published_set_has_the_means_that_were_counted_on_it(tmp_path: Path) -> None:
    rows = json.loads(PUBLISHED.read_text().split("\n")[0])
    both_means = []
    for draft in (key.removeprefix("acc_") for key in rows if key.startswith("acc_")):
        done = import_trace(
            PUBLISHED, "specdecode-bench", ImportNames(draft=draft), tmp_path / draft, ()
        )
        both_means.append(
            [round(mean, 2) for mean in means(replayed(TraceFile(done.path), "fixed-k:k=5"))]
        )
    assert [2.62, 3.22] in both_means


def test_the_steps_of_vllm_come_out_as_they_went_in(tmp_path: Path) -> None:
    accepted = {"a": [0, 5, 2, 5, 5, 1], "b": [5, 0, 0, 3]}
    rows = [response(name, steps, [5] * len(steps)) for name, steps in accepted.items()]
    trace = imported(tmp_path, "vllm-responses", *rows)
    for record in replayed(trace, "fixed-k:k=5"):
        assert [step.accepted for step in record.rounds] == accepted[record.request_id]
        assert len(record.prompt_ids) == 31, "the first token came with the prompt"


def test_a_round_tells_what_shorter_drafts_would_have_got(tmp_path: Path) -> None:
    """4, 2 and 3 of 5 accepted: right are tokens 1-4, 6-7 and 9-11, so that drafts of 2 get 2, 1, 2, 2, 0 of them."""
    trace = imported(tmp_path, "vllm-responses", response("a", [4, 2, 3], [5, 5, 5]))
    (record,) = replayed(trace, "fixed-k:k=2")
    assert [step.accepted for step in record.rounds] == [2, 1, 2, 2, 0]
    assert "imported" in trace.header.run
    assert trace.header.run["imported"]["notes"] == []


def test_a_token_after_a_whole_draft_is_right_as_often_as_the_others(tmp_path: Path) -> None:
    """One drafted token in 4000 rounds is right with .75: drafts of 1 from everywhere must find .75 right, too."""
    random = Random(0)
    steps = [int(random.random() < 0.75) for _ in range(4000)]
    trace = imported(tmp_path, "vllm-responses", response("a", steps, [1] * 4000))
    (request,) = trace
    judged = request.drafted[:, 0] == request.output_ids
    assert judged.mean() == pytest.approx(sum(steps) / 4000, abs=0.02)
    assert (
        f"{sum(steps)} rounds end with a token that was not drafted"
        in trace.header.run["imported"]["notes"][0]
    )


def test_a_histogram_gives_its_mean_in_any_order(tmp_path: Path) -> None:
    trace = imported(
        tmp_path, "aiperf", *(record(name, {"0": 6, "2": 3, "5": 4}) for name in ("a", "b"))
    )
    records = replayed(trace, "fixed-k:k=5")
    assert means(records)[0] == pytest.approx(1 + (2 * 3 + 5 * 4) / 13)
    steps = [[step.accepted for step in record.rounds] for record in records]
    assert sorted(steps[0]) == sorted(steps[1])
    assert steps[0] != steps[1]
    assert any("in a random order" in note for note in trace.header.run["imported"]["notes"])


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ("svip", "svip reads statistics of drafted tokens"),
        ("wisp", "wisp reads statistics"),
        ("threshold", "threshold reads probabilities"),
        ("banditspec:arms=svip+fixed-k.k=2", "banditspec reads statistics"),
        ("opt-tree", "drafts trees cannot be replayed"),
    ],
)
def test_a_method_that_reads_more_is_refused_by_what_is_missing(
    spec: str, missing: str, tmp_path: Path
) -> None:
    trace = imported(tmp_path, "specdecode-bench", offsets("a", [2] * 9))
    with pytest.raises(SkitError, match=missing):
        prepare_for_replay(parse_method(spec), trace, WAN)


def test_what_is_not_on_record_is_not_made_up(tmp_path: Path) -> None:
    trace = imported(tmp_path, "vllm-responses", response("a", [1, 2], [3, 3]))
    with pytest.raises(SkitError, match="has no token ids on record"):
        prepare_for_replay(parse_method("fixed-k:drafter=suffix"), trace, WAN)
    done = skit_here("train-predictor", "--trace", trace.path, "--out", tmp_path / "out")
    assert error_line(done).startswith(
        "predictors learn from statistics of drafted tokens, and this trace has no draft"
    )
    done = skit_here("bench", "--method", "fixed-k", "--replay", trace.path)
    assert "has no step times on record: choose a --deployment" in error_line(done)


def test_what_was_said_is_there_to_look_up(tmp_path: Path) -> None:
    trace = imported(tmp_path, "specdecode-bench", offsets("a", [1] * 60))
    (record,) = replayed(trace, "fixed-k:k=3,drafter=suffix")
    assert sum(step.accepted for step in record.rounds) > 30


def test_bandits_sweeps_and_the_simulator_take_it(tmp_path: Path) -> None:
    random = Random(1)
    rows = [offsets(f"q{n}", [random.choice([1, 2, 5]) for _ in range(30)]) for n in range(6)]
    file = write_rows(tmp_path / "file.jsonl", *rows)
    out = tmp_path / "trace.parquet"
    done = skit_here("import", file, "--format", "specdecode-bench", "--target", "8B", "--out", out)
    assert f"trace: {out} (6 requests, 180 offsets)" in done.stdout
    methods = [
        f"--method={name}"
        for name in ("fixed-k", "banditspec", "sglang-ema", "ucb-specstop:k_max=4")
    ]
    shared_options = ("--replay", out, "--deployment", "wan", "--out", tmp_path / "results")
    done = skit_here("sweep", *methods, *shared_options, "--set", "link.rtt_s=0.001,0.1")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "results").iterdir()
    run = read_object(folder / "run.json")
    assert [run["models"][role]["name"] for role in ("target", "draft")] == ["8B", "eagle"]
    assert (
        "IMPORTED TRACE: which tokens were accepted comes from SpecDecode-Bench."
        in (folder / "report.md").read_text()
    )
    source = trace_source(TraceFile(out), parse_method("fixed-k"), WAN).typical
    records = replayed(TraceFile(out), "fixed-k")
    rounds = [step for record in records for step in record.rounds]
    assert source.acceptance == pytest.approx(
        sum(step.accepted for step in rounds) / sum(step.submitted for step in rounds)
    )


def test_all_leaves_out_who_drafts_longer_than_was_recorded(tmp_path: Path) -> None:
    """A method whose given draft is longer than those of the trace is left out, and one by default drafts as long."""
    rows = [offsets(f"q{n}", [4] * 40) for n in range(2)]
    trace = imported(tmp_path, "specdecode-bench", *rows)
    settings = BenchSettings(
        ("group:latency-aware", "fixed-k:k=3"),
        deployment=WAN,
        out=tmp_path / "runs",
        baseline=False,
    )
    conclusions, left_out, _ = bench_replay(settings, trace.path, lambda _: None)
    assert "fixed-k:k=3" in {conclusion.summary.method for conclusion in conclusions}
    assert "goodput" not in left_out
    assert "reads probabilities" in left_out["tetris"]
    assert any("goodput" in run.name for run in (tmp_path / "runs").iterdir())


WRONG: list[tuple[str, Rows, str]] = [
    ("specdecode-bench", [], "holds no request"),
    ("specdecode-bench", [{"id": "a"}], "it holds none"),
    ("specdecode-bench", [offsets("a", [2], acc_ngram={"acc_len": [1]})], "it holds eagle, ngram"),
    (
        "specdecode-bench",
        [offsets("a", [0, 2])],
        "line 1: not a request of SpecDecode-Bench (acc_len must be a list",
    ),
    (
        "specdecode-bench",
        [offsets("a", [1] * 3, generated_token_ids=[])],
        "generated_token_ids must be a list",
    ),
    (
        "specdecode-bench",
        [offsets("a", [1], prompt_token_ids=[])],
        "prompt_token_ids must be a list",
    ),
    (
        "vllm-responses",
        [{"id": "a", "usage": {}, "metrics": None}],
        "holds no response with metrics.speculative",
    ),
    ("vllm-responses", [{"id": "a", "metrics": [1]}], "line 1: not a response of vLLM"),
    ("vllm-responses", [response("a", [4], [3])], "4 of 3 drafted tokens cannot be accepted"),
    (
        "vllm-responses",
        [response("a", [1], [3], usage={"prompt_tokens": 4})],
        "number of output tokens",
    ),
    ("vllm-responses", [response("a", [1], [3])] * 2, "two requests have one id"),
    ("aiperf", [{"metadata": {}, "metrics": {}}], "holds no record with spec_decode_acceptance"),
    (
        "aiperf",
        [record("a", {"1": 2}) | {"metrics": {}}],
        "metrics.input_sequence_length is missing",
    ),
    (
        "aiperf",
        [record("a", {"1": 2}) | {"spec_decode_acceptance": [1]}],
        "line 1: not a record of AIPerf",
    ),
]


@pytest.mark.parametrize(("form", "rows", "reason"), WRONG)
def test_a_file_of_another_shape_is_one_line(
    form: str, rows: Rows, reason: str, tmp_path: Path
) -> None:
    file = write_rows(tmp_path / "file.jsonl", *rows)
    line = error_line(
        skit_here("import", file, "--format", form, "--out", tmp_path / "trace.parquet")
    )
    assert reason in line
    assert list(tmp_path.iterdir()) == [file]


def test_drafts_of_several_lengths_need_the_detailed_level(tmp_path: Path) -> None:
    line = record("a", {"0": 3, "1": 2})
    line["spec_decode_acceptance"]["num_draft_tokens"] = 17
    with pytest.raises(SkitError, match="per-request-spec-decode-metrics detailed"):
        imported(tmp_path, "aiperf", line)
    line["spec_decode_acceptance"]["acceptance_histogram_by_draft_length"] = {
        "3": [2, 0, 0, 0],
        "4": [1, 2, 0, 0, 0],
    }
    (request,) = replayed(imported(tmp_path, "aiperf", line), "fixed-k:k=5")
    assert all(before.end_s < after.end_s for before, after in pairwise(request.rounds))
