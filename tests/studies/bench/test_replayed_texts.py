"""What a replay says of the texts of answers: the same as decoding them."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
from command_line import Rows, TinyPair, write_rows
from environments import DEPLOYMENT
from msgspec import structs
from tiny_tokenizers import SPACED, TARGET
from trace_builders import made_request, write_trace
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.loading import LoadedDataset, load
from specbench_kit.studies.bench.replay import bench_replay
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.recording.settings import RecordingSettings
from specbench_kit.studies.recording.trace import record
from specbench_kit.traces.reading_aids import METADATA, ReadingAids, reading_aids
from specbench_kit.traces.trace import TraceFile
from specbench_kit.traces.writing import TraceWriter

CALL = {"function": {"name": "add", "arguments": '{"a": 1}'}}
CONVERSATIONS: Rows = [
    {
        "id": f"t{i}",
        "messages": [
            {"role": "user", "content": f"Add {i}."},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "1"},
        ],
        "tools": [{"name": "add"}],
    }
    for i in range(2)
]
METHODS = ("fixed-k:k=2", "threshold:max_draft=3")


def no_report(*_: object) -> None:
    """Say nothing."""


def conversations(folder: Path) -> LoadedDataset:
    file = write_rows(folder / "prompts.jsonl", *CONVERSATIONS)
    return load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)


def recorded(tiny: TinyPair, folder: Path, *, text: bool = True) -> TraceFile:
    settings = RecordingSettings(
        target=str(tiny.target), draft=str(tiny.draft), device="cpu", max_new_tokens=12
    )
    path = folder / "trace.parquet"
    record(settings, conversations(folder), path, 4, no_report, text=text)
    return TraceFile(path)


def test_conversations_with_tools_are_told_as_by_decoding(tiny: TinyPair, tmp_path: Path) -> None:
    trace = recorded(tiny, tmp_path)
    settings = BenchSettings(
        METHODS,
        str(tiny.target),
        str(tiny.draft),
        device="cpu",
        max_new_tokens=12,
        out=tmp_path / "decoded",
        deployment=DEPLOYMENT,
    )
    settings.out.mkdir()
    benchmark = Benchmark(settings, conversations(tmp_path))
    benchmark.run(no_report)
    decoded = benchmark.write_results()
    of_trace = BenchSettings(METHODS, out=tmp_path / "replayed", deployment=DEPLOYMENT)
    replayed, *_ = bench_replay(of_trace, trace.path, no_report)
    for live, again in zip(decoded, replayed, strict=True):
        assert live.summary.tool_calls is not None
        assert live.summary.tool_calls.answers == 4
        assert again.summary.tool_calls == live.summary.tool_calls
        texts = [{r.request_id: r.text for r in each.requests.records} for each in (live, again)]
        assert texts[0] == texts[1]
        assert "## Calls of tools" in (again.directory.path / "report.md").read_text()


def test_a_trace_without_texts_has_nothing_to_read_them_by(tiny: TinyPair, tmp_path: Path) -> None:
    trace = recorded(tiny, tmp_path, text=False)
    assert trace.aids is None


def test_thoughts_and_reply_are_told_of_recorded_answers(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    thoughts, reply = "I think so</think>", "Yes, it is so"
    answer = [*tokenizer.encode(thoughts), *tokenizer.encode(reply)]
    requests = [
        replace(made_request(f"r{i}", len(answer), seed=i), output_ids=answer) for i in range(3)
    ]
    path = write_trace(tmp_path / "t.parquet", requests).path
    header = TraceFile(path).header
    with TraceWriter(path, header) as writer:
        for request in requests:
            writer.append(request)
        tokens = {t for r in requests for t in (*r.prompt_ids, *r.output_ids, *r.continuation)}
        writer.aids = reading_aids(tokenizer, tokens, [answer], {})
    settings = BenchSettings(("fixed-k:k=2",), out=tmp_path / "out", deployment=DEPLOYMENT)
    ((conclusion,), *_) = bench_replay(settings, path, no_report)
    thinking = conclusion.summary.thinking
    assert thinking is not None
    assert [part.tokens for part in thinking.parts] == [
        len(tokenizer.encode(text)) for text in (thoughts, reply)
    ]
    assert "## Thoughts and reply" in (conclusion.directory.path / "report.md").read_text()


@pytest.mark.parametrize(
    ("tokenizer_of", "text"),
    [(TARGET, "abc d"), (SPACED, " ca a e"), (None, "wörld 日本 😀 <|end|>")],
)
def test_tokens_are_put_together_as_their_tokenizer_does(
    tiny: TinyPair, tokenizer_of: PreTrainedTokenizerBase | None, text: str
) -> None:
    tokenizer = tokenizer_of or AutoTokenizer.from_pretrained(tiny.target)
    ids = tokenizer.encode(text)
    aids = reading_aids(tokenizer, set(ids), [ids], {"c": "[]"})
    assert aids is not None
    assert aids.decode(ids).lstrip(" ") == tokenizer.decode(ids).lstrip(" ")
    assert aids.decode(ids, skip_special_tokens=True).lstrip(" ") == tokenizer.decode(
        ids, skip_special_tokens=True
    ).lstrip(" ")
    assert ReadingAids.unpack(aids.packed()) == aids


@pytest.mark.parametrize("change", ["cut", "no archive", "other content"])
def test_damaged_texts_are_refused_in_one_line(tiny: TinyPair, tmp_path: Path, change: str) -> None:
    trace = recorded(tiny, tmp_path)
    assert trace.aids is not None
    packed = trace.aids.packed()
    content = {
        "cut": packed[:-8],
        "no archive": b"texts",
        "other content": ReadingAids({1: b"x"}).packed()[:2] + packed[2:-1] + b"?",
    }[change]
    table = pyarrow.parquet.read_table(trace.path)
    metadata = {**(table.schema.metadata or {}), METADATA: content}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), trace.path)
    with pytest.raises(SkitError, match="is damaged: its texts") as refusal:
        TraceFile(trace.path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("tools", ["[", '{"a": 1}', "[1]", '[{"function": {}}]'])
def test_tools_that_are_none_are_refused_before_anything_is_replayed(
    tiny: TinyPair, tmp_path: Path, tools: str
) -> None:
    trace = recorded(tiny, tmp_path)
    assert trace.aids is not None
    with TraceWriter(tmp_path / "changed.parquet", trace.header) as writer:
        for request in trace:
            writer.append(request)
        writer.aids = structs.replace(trace.aids, tools={"t0": tools})
    settings = BenchSettings(METHODS, out=tmp_path / "out", deployment=DEPLOYMENT)
    with pytest.raises(SkitError, match="is damaged: its tools cannot be read"):
        bench_replay(settings, tmp_path / "changed.parquet", no_report)
    assert not settings.out.exists()
