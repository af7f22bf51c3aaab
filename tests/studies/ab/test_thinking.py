"""Reasoning models: the thinking part of an answer and its reply, each with its length and its times."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from command_line import read_object, read_rows, skit_here, write_rows
from http_servers import OneModelHandler, running
from msgspec import UNSET, to_builtins
from result_files import Body, aiperf_record, evenly, genai_perf, guidellm_newest, json_lines
from scripted_streams import answer, chat

from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord, StreamedAnswer, ThinkingPart
from specbench_kit.live.engines.base import StreamEvent
from specbench_kit.live.engines.received import ReceivedStream
from specbench_kit.reports.render_markdown import render
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.report import AbDescription, build
from specbench_kit.studies.ab.summary import ThinkingFigures

Delta = dict[str, Any]


def thought(*texts: str, field: str = "reasoning_content") -> list[Delta]:
    return [{field: text} for text in texts]


def said(*texts: str) -> list[Delta]:
    return [{"content": text} for text in texts]


def received(deltas: Sequence[Delta], usage: int | None = None) -> StreamedAnswer:
    """Return the answer of a server that sends a delta every tenth of a second."""
    timed = [(0.1 * place, delta) for place, delta in enumerate(deltas, 1)]
    return answer(chat(*timed, usage=usage)).received.answer()


@pytest.mark.parametrize(
    ("deltas", "part"),
    [
        (
            [*thought("Hm, ", "so"), *said("It ", "is ", "so.")],
            ThinkingPart(2, 6, 9, pytest.approx(0.3)),
        ),
        (
            # The blank lines behind the thoughts are nothing that a reader sees.
            [*thought("Hm, ", field="reasoning"), *said("\n\n", "It ", "is ", "so.")],
            ThinkingPart(2, 6, 9, pytest.approx(0.3)),
        ),
        (
            said("<think>", "Hm", "</think>", "It ", "is."),
            ThinkingPart(3, 17, 6, pytest.approx(0.4)),
        ),
        (
            # A tag may be cut, and a chat template may have written the first one.
            said("Hm", "</th", "ink>", "\n\nIt ", "is."),
            ThinkingPart(3, 12, 6, pytest.approx(0.4)),
        ),
        (
            said(" <think>", "Hm", ", ", "so", " what"),
            ThinkingPart(5, 19, 0, None, unfinished=True),
        ),
        (
            [*thought("Hm", ",", " so", " what", "?")],
            ThinkingPart(5, 12, 0, None, unfinished=True),
        ),
        (
            # A call of a tool is a reply, and thoughts behind it belong to it.
            [
                *thought("Hm", ","),
                {"tool_calls": [{"index": 0, "function": {"name": "find", "arguments": "{}"}}]},
                *thought("so", " what"),
            ],
            ThinkingPart(2, 3, 13, pytest.approx(0.3)),
        ),
    ],
)
def test_a_thinking_part_ends_where_the_reply_begins(
    deltas: list[Delta], part: ThinkingPart
) -> None:
    found = received(deltas, usage=len(deltas))
    assert found.thinking == part
    assert found.tokens == 5


@pytest.mark.parametrize(
    "deltas",
    [
        said("It ", "is."),
        # A model that is told not to think writes the tags alone.
        said("<think>", "\n\n", "</think>", "\n\n", "It is."),
        [*thought(" "), *said("It is.")],
        [*said("It is."), *thought("Hm")],
    ],
)
def test_answers_without_thoughts_are_written_as_before(deltas: list[Delta]) -> None:
    found = received(deltas, usage=len(deltas))
    assert found.thinking is UNSET
    assert "thinking" not in to_builtins(found)
    summary = summary_of(deltas, deltas)
    (load,) = to_builtins(summary)["loads"]
    assert "thinking" not in load["servers"]["plain"]
    assert "Thinking and reply" not in render(build(AbDescription(), summary))


def test_a_chunk_with_the_end_of_both_parts_is_divided_by_its_text() -> None:
    stream = ReceivedStream()
    stream.add(StreamEvent(reasoning="Hm", token_ids=[1], tokens=1, counted_by="token ids"), 0.1)
    stream.add(
        StreamEvent(
            reasoning="aaaa",
            text="aaaa",
            token_ids=[2, 3, 4, 5],
            tokens=4,
            counted_by="token ids",
        ),
        0.2,
    )
    assert stream.answer().thinking == ThinkingPart(3, 6, 4, 0.2)


@pytest.mark.parametrize(("stated", "tokens"), [(4, 4), (0, 2), (8, 2), (None, 2)])
def test_a_server_that_counts_the_thoughts_is_believed_up_to_all_tokens(
    stated: int | None, tokens: int
) -> None:
    deltas = [(0.1, *thought("Hm")), (0.2, *said("It is so."))]
    details = {"completion_tokens_details": {"reasoning_tokens": stated}}

    def with_details(document: Any) -> Any:
        if usage := document.get("usage"):
            usage |= details
        return document

    found = answer(chat(*deltas, usage=7, change=with_details)).received.answer()
    assert found.tokens == 7
    assert found.thinking == ThinkingPart(tokens, 2, 9, 0.2)


def test_the_reply_is_judged_without_thoughts_between_tags() -> None:
    found = received(said("<think>Hm", "</think>\n", '{"a": 1}'), usage=3)
    assert (found.text, found.reply) == ('<think>Hm</think>\n{"a": 1}', '{"a": 1}')


def summary_of(first: Sequence[Delta], second: Sequence[Delta], usage: bool = True) -> Any:
    """Compare two servers by eight equal answers each; the second one sends twice as fast."""
    records = []
    for number in range(8):
        for name, deltas, step_s in (("plain", first, 0.1), ("spec", second, 0.05)):
            timed = [(step_s * place, delta) for place, delta in enumerate(deltas, 1)]
            sent = answer(chat(*timed, usage=len(deltas) if usage else None))
            key = AnswerKey("load", name, f"p{number}", 0)
            records.append(AnswerRecord(key, number, 10.0 * number, sent.received.answer()))
    return summarise(Plan(("plain", "spec"), ["load"], len(records)), records)


THINKS = [*thought("Hm, ", "so ", "what", "?"), *said("It ", "is ", "so.")]


def test_both_parts_are_compared() -> None:
    summary = summary_of(THINKS, THINKS)
    (load,) = summary.loads
    figures = load.servers["plain"].thinking
    assert isinstance(figures, ThinkingFigures)
    assert (figures.answers, figures.unfinished, figures.unit) == (8, 0, "tokens")
    assert (figures.thinking_length, figures.reply_length) == (4, 3)
    # Tokens arrive every tenth of a second: the four thoughts from 0.1 to 0.5 s, where the reply begins.
    assert figures.reply.p50 == pytest.approx(0.5)
    assert (figures.thinking_s, figures.reply_s) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (figures.thinking_rate, figures.reply_rate) == (pytest.approx(10), pytest.approx(10))
    (reply,) = (entry for entry in load.comparisons if entry.figure == "reply")
    assert (reply.typical, reply.units, reply.verdict) == (pytest.approx(2), 8, "faster")
    page = render(build(AbDescription(), summary))
    assert page.count("## Thinking and reply") == 1
    assert (
        "the median wait at load is 500 ms at `plain` and 250 ms at `spec`; in a typical turn `spec` is 2.00x as fast "
        "(verdict: faster)."
    ) in page


def test_lengths_are_in_characters_where_a_server_counts_no_tokens() -> None:
    (load,) = (summary := summary_of(THINKS, THINKS, usage=False)).loads
    for name in ("plain", "spec"):
        figures = load.servers[name].thinking
        assert (figures.unit, figures.thinking_length, figures.reply_length) == (
            "characters",
            12,
            9,
        )
    assert "thinking, characters" in render(build(AbDescription(), summary))


def test_answers_that_end_while_they_think_have_no_reply() -> None:
    (load,) = summary_of(THINKS[:4], THINKS).loads
    figures = load.servers["plain"].thinking
    assert (figures.unfinished, figures.reply.p50, figures.reply_rate) == (8, None, None)
    # Three gaps between four thoughts.
    assert (figures.thinking_s, figures.thinking_rate) == (pytest.approx(0.3), pytest.approx(10))
    assert not [entry for entry in load.comparisons if entry.figure == "reply"]


@contextmanager
def thinking_server(pause_s: float) -> Iterator[str]:
    """A server that thinks for six tokens and then replies with three, a pause before each."""

    class Handler(OneModelHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for delta in [*thought(*["hm "] * 6), *said("It ", "is ", "so.")]:
                sleep(pause_s)
                self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            self.send({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}})
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def send(self, document: object) -> None:
            self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())
            self.wfile.flush()

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"127.0.0.1:{port}"


def test_a_server_that_streams_its_thoughts(tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl",
        *({"id": f"p{number}", "prompt": f"prompt {number}"} for number in range(6)),
    )
    options = ("--dataset", prompts, "--out", tmp_path / "out", "--warm-up", 0, "--repeats", 1)
    with thinking_server(0.006) as plain, thinking_server(0.002) as spec:
        done = skit_here(
            "ab",
            f"plain=chat://{plain}",
            f"spec=chat://{spec}",
            *options,
            "--json",
            "--fail-if",
            "reply_speedup>1",
        )
    # The condition holds, since the second server's reply begins earlier.
    assert done.returncode == 1, done.stderr
    (folder,) = (tmp_path / "out").glob("*-ab-*")
    summary = read_object(folder / "summary.json")
    assert json.loads(done.stdout)["summary"] == summary
    (load,) = summary["loads"]
    for name in ("plain", "spec"):
        figures = load["servers"][name]["thinking"]
        assert (figures["answers"], figures["thinking_length"], figures["reply_length"]) == (
            6,
            6,
            3,
        )
        assert figures["reply"]["p50"] > load["servers"][name]["ttft"]["p50"]
    assert all(
        row["answer"]["thinking"]["tokens"] == 6 for row in read_rows(folder / "answers.jsonl")
    )
    assert "## Thinking and reply" in (folder / "report.md").read_text()
    assert "servers.plain.thinking" not in (folder / "servers.csv").read_text()
    assert "thinking.reply.p50" in (folder / "servers.csv").read_text()


def with_thoughts(content: str, *parts: str) -> str:
    """Return an export of GenAI-Perf whose first chunks of each answer hold these parts as thoughts."""
    document = json.loads(content)
    for request in document["experiments"][0]["requests"]:
        for place, text in enumerate(parts, 1):
            delta = {"choices": [{"index": 0, "delta": {"reasoning_content": text}}]}
            request["response_outputs"][place] = {"response": f"data: {json.dumps(delta)}\n\n"}
    return json.dumps(document)


def vllm(requests: Sequence[Any]) -> Body:
    from result_files import vllm_newest

    texts = ["<think>Hm</think>\n\nIt is so." for _ in requests]
    return json.loads(vllm_newest(requests, generated_texts=texts))


def guidellm(requests: Sequence[Any]) -> Body:
    document = json.loads(guidellm_newest(requests))
    for row in document["benchmarks"][0]["requests"]["successful"]:
        row |= {"reasoning_output": "Hm, so", "output": "\n\nIt"}
    return document


def aiperf(requests: Sequence[Any]) -> str:
    rows = [aiperf_record(number, request) for number, request in enumerate(requests)]
    for row, request in zip(rows, requests, strict=True):
        row["metrics"] |= {
            "reasoning_token_count": {"value": 3, "unit": "tokens"},
            "time_to_first_output_token": {"value": 1e3 * request.moments_s[3], "unit": "ms"},
        }
    return json_lines(rows)


@pytest.mark.parametrize(
    ("write", "lengths", "reply_s"),
    [
        (lambda requests: with_thoughts(genai_perf(requests), "hm ", "so "), (2, 3), 0.4),
        (aiperf, (3, 2), 0.5),
        (guidellm, (3, 2), None),
        (vllm, (3, 2), None),
    ],
)
def test_other_tools_tell_the_thinking_part(
    tmp_path: Path, write: Any, lengths: tuple[int, int], reply_s: float | None
) -> None:
    for name, step_s in (("one", 0.1), ("two", 0.05)):
        content = write(evenly(8, step_s))
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    done = skit_here(
        "ab",
        f"plain={tmp_path / 'one'}",
        f"spec={tmp_path / 'two'}",
        "--out",
        tmp_path / "out",
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*-ab-*")
    (load,) = read_object(folder / "summary.json")["loads"]
    figures = load["servers"]["plain"]["thinking"]
    assert (figures["thinking_length"], figures["reply_length"]) == lengths
    assert figures["reply"]["p50"] == (None if reply_s is None else pytest.approx(reply_s))
    replies = [entry["typical"] for entry in load["comparisons"] if entry["figure"] == "reply"]
    assert replies == ([] if reply_s is None else [pytest.approx(2)])
    page = (folder / "report.md").read_text()
    assert "## Thinking and reply" in page
    assert ("the median wait at" in page) == (reply_s is not None)
