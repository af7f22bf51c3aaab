"""Traces of arrivals in every published form: units by the format's own names or as stated."""

import os
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here
from nightly import nightly_except

from specbench_kit.core.errors import SkitError
from specbench_kit.serving.arrival_spec import parse_arrivals, recorded_traces
from specbench_kit.serving.arrival_traces import CROWD, read_arrivals
from specbench_kit.serving.arrivals import ReplayedArrivals

DATA = Path(os.environ.get("SKIT_DATA_DIR", "nowhere")) / "traces"
QWEN = '{"chat_id": 1, "parent_chat_id": -1, "timestamp": %s, "input_length": 9, "output_length": 3, "turn": 1}\n'
FORMS = {
    "azure 2023.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,9,3\n2023-11-16 18:15:49.1805900,8,2\n",
        "Azure's trace, TIMESTAMP dates",
    ),
    "azure 2024.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,9,3\n"
        "2024-05-10 00:00:02.509930+00:00,8,2\n",
        "Azure's trace, TIMESTAMP dates",
    ),
    "vidur.csv": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,9,3\n4.0,8,2\n",
        "Vidur's form of a trace, arrived_at in seconds",
    ),
    "burstgpt.csv": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,9,3,12,API log\n"
        "7.5,GPT-4,8,2,10,API log\n",
        "BurstGPT's trace, Timestamp in seconds",
    ),
    "burstgpt 2.csv": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.0,1,2.5,ChatGPT,9,3,12,API log\n7.5,1,2.5,GPT-4,8,2,10,API log\n",
        "BurstGPT's trace, Timestamp in seconds",
    ),
    "splitwise.csv": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,1.5,1,9,3\n1,2,0,4.0,1,8,2\n",
        "Splitwise's form of a trace, arrival_timestamp in seconds",
    ),
    "mooncake.jsonl": (
        '{"timestamp": 500, "input_length": 9, "output_length": 3, "hash_ids": [1]}\n'
        '{"timestamp": 3000, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}\n',
        "Mooncake's trace, timestamp in milliseconds",
    ),
    "mooncake.csv": (
        "timestamp,input_length,output_length\n500,9,3\n3000,8,2\n",
        "Mooncake's trace, timestamp in milliseconds",
    ),
    "qwen-bailian.jsonl": (
        QWEN % "61.5" + QWEN.replace("9,", "8,").replace(": 3", ": 2") % "64.0",
        "Qwen-Bailian's trace, timestamp in seconds",
    ),
    "llmservingsim.jsonl": (
        '{"arrival_time": 1.5, "input_toks": 9, "output_toks": 3}\n'
        '{"arrival_time": 4.0, "input_toks": 8, "output_toks": 2}\n',
        "LLMServingSim's log, arrival_time in seconds",
    ),
    "llmservingsim 2.jsonl": (
        '{"arrival_time_ns": 1500000000, "input_toks": 9, "output_toks": 3}\n'
        '{"arrival_time_ns": 4000000000, "input_toks": 8, "output_toks": 2}\n',
        "LLMServingSim's requests, arrival_time_ns in nanoseconds",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_published_form_is_read_in_its_own_unit(name: str, tmp_path: Path) -> None:
    content, taken_for = FORMS[name]
    (tmp_path / name).write_text(content)
    arrivals = read_arrivals(tmp_path / name)
    assert [tuple(request) for request in arrivals.requests] == [
        (0, 9, 3),
        (pytest.approx(2.5), 8, 2),
    ]
    assert arrivals.reading is not None
    assert arrivals.reading.line == f"{name}: taken for {taken_for}, with lengths; 2 requests."
    assert not arrivals.reading.doubts


def test_json_lines_are_known_whatever_the_file_s_name(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text("\ufeff" + FORMS["mooncake.jsonl"][0])
    assert len(read_arrivals(tmp_path / "trace.txt").requests) == 2


@pytest.mark.parametrize(
    ("columns", "stated", "at_s"),
    [
        ("timestamp,input_length,output_length", "unit=s", 2500.0),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "unit=ms", 2.5),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "unit=ns", 2.5e-6),
        ("arrived_at,num_prefill_tokens,num_decode_tokens", "unit=us", 2.5e-3),
        ("when,in,out", "time=when,unit=ms,prompt=in,output=out", 2.5),
    ],
)
def test_a_stated_unit_or_column_comes_first(
    columns: str, stated: str, at_s: float, tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(f"{columns}\n500,9,3\n3000,8,2\n")
    arrivals = read_arrivals(tmp_path / "trace.csv", stated=stated)
    assert arrivals.requests[1].at_s == pytest.approx(at_s)
    assert [request[1:] for request in arrivals.requests] == [(9, 3), (8, 2)]
    assert arrivals.reading is not None
    assert "as stated" in arrivals.reading.line


@pytest.mark.parametrize(
    ("content", "stated", "message"),
    [
        (
            "timestamp\n1\n2\n",
            "",
            "known layouts: .*; others are stated, as in .*:unit=ms,time=COLUMN",
        ),
        ("Timestamp,in,out\n1,2,3\n", "", "has the columns Timestamp, in, out; known layouts"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n5,1,2\n",
            "",
            "holds numbers, whose unit Azure's trace",
        ),
        (
            "timestamp,input_length,output_length\n61.114,9,3\n",
            "",
            "61.114, and times of Mooncake's trace are whole",
        ),
        (
            "when\n5\n",
            "time=when",
            "whose unit a trace with the stated columns does not tell: state it",
        ),
        ("when\n5\n", "time=then,unit=s", "has no column then; it has when"),
        ("when\n5\n", "prompt=in,unit=s", "name the column of times too"),
        ("when\n2024-01-01\n", "time=when,unit=s", "unit=s: when holds dates; leave it out"),
        ("when\n5\n", "unit=h", "unit must be s or ms or us or ns, not 'h'"),
        (
            "when\n5\n",
            "units=s",
            "unknown option 'units' .did you mean 'unit'.*; known: unit, time, prompt",
        ),
    ],
)
def test_a_unit_is_never_guessed(content: str, stated: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(content)
    with pytest.raises(SkitError, match=message) as refused:
        read_arrivals(tmp_path / "trace.csv", stated=stated)
    assert "\n" not in str(refused.value)


def test_requests_without_a_prompt_or_an_answer_are_counted(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "Timestamp,Request tokens,Response tokens\n1,4,0\n2,3,1\n3,0,0\n"
    )
    reading = read_arrivals(tmp_path / "trace.csv").reading
    assert reading is not None
    assert reading.line.endswith("; 1 request; left out: 2 without a prompt or an answer.")


@pytest.mark.parametrize(
    ("apart_s", "count", "doubt"),
    [
        (1e-4, 200, "more than a request per millisecond, 200 in"),
        (1e-4, 20, ""),
        (500.0, 200, "a request every 500 s"),
        (500.0, 3, "a request every 500 s"),
        (1.0, 200, ""),
    ],
)
def test_a_density_that_cannot_be_is_doubted(
    apart_s: float, count: int, doubt: str, tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(
        "Timestamp\n" + "".join(f"{apart_s * n}\n" for n in range(count))
    )
    reading = read_arrivals(tmp_path / "trace.csv").reading
    assert reading is not None
    assert [line[: len(doubt)] for line in reading.doubts] == ([doubt] if doubt else [])


def test_a_thousand_requests_in_a_millisecond_are_doubted_wherever_they_are(tmp_path: Path) -> None:
    times = [*range(100), *(100 + 1e-7 * n for n in range(CROWD)), *range(200, 300)]
    (tmp_path / "trace.csv").write_text("Timestamp\n" + "".join(f"{time}\n" for time in times))
    reading = read_arrivals(tmp_path / "trace.csv").reading
    assert reading is not None
    assert len(reading.doubts) == 1


@pytest.mark.parametrize("command", nightly_except(["simulate"], ["simulate", "capacity"]))
def test_what_a_trace_was_taken_for_stands_before_the_result(command: str, tmp_path: Path) -> None:
    """200 requests in 20 ms: ten seconds of them by another unit."""
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{n / 10_000},20,4\n" for n in range(200))
    trace.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    options = (
        "--acceptance",
        "iid:alpha=0.8,length=4",
        "--seeds",
        1,
        "--duration",
        12,
        "--warm-up",
        0,
    )
    devices = ("--devices", 200) if command == "simulate" else ()
    done = skit_here(command, *options, *devices, "--arrivals", trace, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert words.index("DOUBTFUL: trace.csv: more than a request per millisecond") < words.index(
        "200 requests."
    )
    assert words.index("200 requests.") < words.index("simulated seconds")
    (folder,) = (tmp_path / "out").iterdir()
    run = read_object(folder / "run.json")
    assert run["files"] == [
        "trace.csv: taken for Vidur's form of a trace, arrived_at in seconds, with lengths; 200 requests."
    ]
    report = (folder / "report.md").read_text()
    assert report.index("DOUBTFUL: trace.csv") < report.index("What was simulated")
    stated = skit_here(
        command, *options, *devices, "--arrivals", f"{trace}:unit=weeks", "--out", tmp_path / "out"
    )
    assert "unit must be s or ms or us or ns" in error_line(stated)


@pytest.mark.skipif(not DATA.is_dir(), reason="SKIT_DATA_DIR is not set")
@pytest.mark.parametrize(
    ("name", "taken_for", "lasts_s"),
    [
        ("azure2023_conv.csv", "Vidur's form of a trace, arrived_at in seconds", 3600),
        ("azure2023_code.csv", "Vidur's form of a trace, arrived_at in seconds", 3600),
        ("mooncake_conversation.jsonl", "Mooncake's trace, timestamp in milliseconds", 3600),
        ("adaspec_conv.csv", "AdaSpec's arrival times, Timestamp in seconds", None),
        ("adaspec_mooncake.csv", "AdaSpec's arrival times, Timestamp in seconds", None),
    ],
)
def test_the_real_traces_are_taken_for_what_they_are(
    name: str, taken_for: str, lasts_s: float | None
) -> None:
    arrivals = read_arrivals(DATA / name)
    assert arrivals.reading is not None
    assert f"taken for {taken_for}" in arrivals.reading.line
    assert not arrivals.reading.doubts
    assert lasts_s is None or arrivals.requests[-1].at_s == pytest.approx(lasts_s, rel=0.05)


@pytest.mark.parametrize("name", sorted(recorded_traces()))
@pytest.mark.skipif(not DATA.is_dir(), reason="needs traces/adaspec_*.csv of SKIT_DATA_DIR")
def test_bundled_traces_have_the_times_of_their_authors(name: str) -> None:
    authors = read_arrivals(DATA / f"{name.replace('-', '_')}.csv").requests
    bundled = parse_arrivals(name, 1.0)
    assert isinstance(bundled, ReplayedArrivals)
    assert len(bundled.requests) == len(authors)
    for ours, theirs in zip(bundled.requests, authors, strict=True):
        assert ours.at_s == pytest.approx(theirs.at_s, abs=1.1e-3)


def test_bundled_traces_have_lengths_as_the_script_of_their_authors_draws_them() -> None:
    traces = [parse_arrivals(name, 1.0) for name in recorded_traces()]
    lengths = [
        [(request.prompt_tokens, request.output_tokens) for request in trace.requests]
        for trace in traces
        if isinstance(trace, ReplayedArrivals)
    ]
    assert len(lengths) == 3
    fewest = min(map(len, lengths))
    assert all(drawn[:fewest] == lengths[0][:fewest] for drawn in lengths)  # one seed for all
    for prompt, output in (pair for drawn in lengths for pair in drawn):
        assert prompt is not None
        assert output is not None
        assert 4 <= prompt <= 1024
        assert 4 <= output <= 1024


def test_a_trace_is_replayed_from_a_second_on(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("Timestamp\n5\n7\n8\n15\n")
    times = [
        request.at_s
        for request in read_arrivals(tmp_path / "trace.csv", stated="from_s=2").requests
    ]
    assert times == [0.0, 1.0, 8.0]
    with pytest.raises(SkitError, match="ends before 11 s: give an earlier from_s"):
        read_arrivals(tmp_path / "trace.csv", stated="from_s=11")
    with pytest.raises(SkitError, match="from_s is a number of seconds from 0 up, not -1"):
        read_arrivals(tmp_path / "trace.csv", stated="from_s=-1")


def test_an_unknown_trace_is_refused_with_the_bundled_ones() -> None:
    with pytest.raises(SkitError, match="one of adaspec-code, adaspec-conv, adaspec-mooncake, or"):
        parse_arrivals("adaspec-chat", 1.0)
