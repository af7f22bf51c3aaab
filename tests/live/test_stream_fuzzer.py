"""Random streams of one answer: however bytes, chunks and fields are cut and ordered, counts and times are the same.

Each case draws an answer (its text, its tokens, and when its first and its last part arrive) and one of the ways in
which a server can stream it. What the client must read follows from the answer alone.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
import pytest
from scripted_streams import ScriptedServer

from specbench_kit.live.engines.answers import StreamedAnswer
from specbench_kit.live.engines.event_reader import EventReader

SEEDS = 40
CASES = 15
"""Seeds, each a test of its own, and the streams of each."""
PLAIN = 'abc XYZ0\n\t"\\{}[]:,'
LETTERS = [*PLAIN, "é", "ß", "中", "🙂", "\u2028", "\x85", "\ufeff", "\r", "data: ", "\n\n"]
Document = dict[str, Any]
Timed = list[tuple[float, Any]]


@dataclass(frozen=True)
class Answer:
    """What a server answers: the text, the ids of its tokens, and when the first and the last part of it arrive."""

    text: str
    ids: list[int]
    first_s: float
    last_s: float

    @classmethod
    def drawn(cls, random: Random) -> "Answer":
        count = random.randint(2, 24)
        letters = [random.choice(LETTERS) for _ in range(random.randint(count, 5 * count))]
        first_s = random.uniform(0.001, 3)
        return cls(
            "".join(letters),
            [random.randrange(1000) for _ in range(count)],
            first_s,
            first_s + random.random(),
        )

    def cut(self, random: Random, most: int) -> list[tuple[float, str, list[int]]]:
        """Return the text and the ids in parts, with their times: at least two, of which none is without a text."""
        parts = max(2, random.randint(1, most))
        letters = list(self.text)
        parts = min(parts, len(letters))
        ends = sorted(random.sample(range(1, len(letters)), parts - 1))
        texts = [
            "".join(letters[begin:end])
            for begin, end in zip([0, *ends], [*ends, len(letters)], strict=True)
        ]
        id_ends = sorted(random.randint(0, len(self.ids)) for _ in range(parts - 1))
        ids = [
            self.ids[begin:end]
            for begin, end in zip([0, *id_ends], [*id_ends, len(self.ids)], strict=True)
        ]
        between = sorted(random.uniform(self.first_s, self.last_s) for _ in range(parts - 2))
        return list(zip([self.first_s, *between, self.last_s], texts, ids, strict=True))


def delta_of(field: str, text: str, random: Random) -> Document:
    """Return a delta that brings a text in a field, with empty fields beside it."""
    call = {"index": 0, "id": "c", "type": "function", "function": {"arguments": text}}
    brought: Document = {
        "content": {"content": text},
        "parts": {"content": [{"type": "text", "text": text}]},
        "thoughts": {
            "content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]
        },
        "tools": {"tool_calls": [call]},
        "function": {"function_call": {"arguments": text}},
        "transcript": {"audio": {"id": "a", "transcript": text}},
    }.get(field, {field: text})
    empty = {
        "role": "assistant",
        "refusal": None,
        "tool_calls": None,
        "reasoning_content": "",
        "content": random.choice(["", None]),
    }
    chosen = {
        name: random.choice([value, None]) for name, value in empty.items() if random.random() < 0.3
    }
    return {**chosen, **brought}


THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thoughts")
REPLIES = ("content", "parts")
OTHERS = ("tools", "function", "refusal", "transcript", "a_field_of_tomorrow")


def fields_for(parts: int, random: Random) -> list[str]:
    """Return the field of each part: thoughts, then the reply, then what comes in other fields."""
    ends = sorted(random.randint(0, parts) for _ in range(2))
    kinds = [
        THOUGHTS if place < ends[0] else REPLIES if place < ends[1] else OTHERS
        for place in range(parts)
    ]
    return [random.choice(kind) for kind in kinds]


def openai(answer: Answer, kind: str, random: Random) -> Timed:
    """Return the documents of a stream of OpenAI's forms, with the times at which they arrive."""
    parts = answer.cut(random, 40)
    fields = fields_for(len(parts), random) if "chat" in kind else ["text"] * len(parts)
    is_running = random.random() < 0.3
    empty_reasons = random.choice([{}, {"finish_reason": ""}, {"finish_reason": None}])
    documents: Timed = []
    if random.random() < 0.5:
        opening = (
            {"delta": {"role": "assistant", "content": ""}} if "chat" in kind else {"text": ""}
        )
        documents.append((answer.first_s / 2, {"choices": [{**opening, **empty_reasons}]}))
    if random.random() < 0.2:
        documents.append((answer.first_s / 2, {"choices": [], "prompt_filter_results": []}))
    so_far = 0
    lag = random.choice([0, 0, 1, 5])
    for (at_s, text, ids), field in zip(parts, fields, strict=True):
        so_far += len(ids)
        choice: Document = (
            {"text": text} if field == "text" else {"delta": delta_of(field, text, random)}
        )
        choice |= {**empty_reasons, "index": 0, "logprobs": None}
        if kind == "vllm-chat":
            choice["token_ids"] = ids
        running = max(1, so_far - lag)
        usage = {"usage": {"prompt_tokens": 5, "completion_tokens": running}} if is_running else {}
        if random.random() < 0.1:
            documents.append((at_s, {"choices": [{**choice, "index": 1, "finish_reason": "stop"}]}))
        documents.append(
            (at_s, {"choices": [choice], **(usage or random.choice([{}, {"usage": None}]))})
        )
    return [*documents, *ending(documents[-1], answer, random)]


def ending(last: tuple[float, Document], answer: Answer, random: Random) -> Timed:
    """Return the events after an answer, or write them into its last one: reason, usage and [DONE], some time later."""
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": len(answer.ids)}}
    reason: Document = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    counts: Document = {"choices": [], **usage}
    later: list[Any] = [reason, counts]
    match random.randrange(5):
        case 0:
            last[1]["choices"][0]["finish_reason"] = "stop"
            later = [counts]
        case 1:
            last[1]["choices"][0]["finish_reason"] = "stop"
            last[1].update(usage)
            later = []
        case 2:
            later = [{**reason, **usage}]
        case 3:
            later = [counts, reason]
    at_s = answer.last_s
    timed: Timed = []
    for document in [*later, *(["[DONE]"] if random.random() < 0.7 else [])]:
        at_s += random.choice([0.0, 0.2, 0.45])
        timed.append((at_s, document))
    return timed


def sglang(answer: Answer, _: str, random: Random) -> Timed:
    is_cumulative = random.random() < 0.5
    documents: Timed = []
    text, ids = "", list[int]()
    for at_s, new, new_ids in answer.cut(random, 12):
        text, ids = text + new, [*ids, *new_ids]
        shown = (text, ids) if is_cumulative else (new, new_ids)
        meta: Document = {"completion_tokens": len(ids), "prompt_tokens": 5, "finish_reason": None}
        documents.append((at_s, {"text": shown[0], "output_ids": shown[1], "meta_info": meta}))
    documents[-1][1]["meta_info"]["finish_reason"] = {"type": "stop"}
    return [*documents, (answer.last_s, "[DONE]")]


def llama_cpp(answer: Answer, _: str, random: Random) -> Timed:
    """Of the tokens that make one character, llama.cpp names only the last one."""
    names_all = random.random() < 0.5
    documents: Timed = []
    so_far = 0
    for at_s, text, ids in answer.cut(random, 40):
        so_far += len(ids)
        counts = {
            "tokens": ids if names_all else ids[-1:],
            "tokens_predicted": so_far,
            "tokens_evaluated": 5,
        }
        documents.append((at_s, {"content": text, "stop": False, **counts}))
    end = {"content": "", "stop": True, "stop_type": "eos", "tokens_evaluated": 5}
    # What was verified after the end is counted too, and was not sent.
    return [
        *documents,
        (answer.last_s + 0.3, {**end, "tokens_predicted": so_far + random.choice([0, 2])}),
    ]


def tgi(answer: Answer, _: str, random: Random) -> Timed:
    """One event for each token, whatever its text; the first and the last one have the times of the answer."""
    count = len(answer.ids)
    letters = list(answer.text)
    ends = [round(len(letters) * number / count) for number in range(count + 1)]
    between = sorted(random.uniform(answer.first_s, answer.last_s) for _ in range(count - 2))
    times = [answer.first_s, *between, answer.last_s]
    documents: Timed = [
        (
            at_s,
            {
                "token": {"id": token, "text": "".join(letters[ends[place] : ends[place + 1]])},
                "details": None,
            },
        )
        for place, (at_s, token) in enumerate(zip(times, answer.ids, strict=True))
    ]
    documents[-1][1]["details"] = {
        "finish_reason": "eos_token",
        "generated_tokens": count,
        "input_length": 5,
    }
    return documents


FORMS = {
    "chat": openai,
    "completions": openai,
    "vllm-chat": openai,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
    "tgi": tgi,
}


def written(document: Any, random: Random) -> str:
    """Return the lines of an event: its data in one or several lines, with other fields and comments among them."""
    indent = random.choice([None, None, 1])
    data = (
        document
        if isinstance(document, str)
        else json.dumps(document, indent=indent, ensure_ascii=random.random() < 0.5)
    )
    # The characters that end lines stand in JSON as escapes, so that every line of it is one of data.
    lines = [f"data:{random.choice(['', ' '])}{line}" for line in data.split("\n")]
    others = [
        ": comment",
        ":",
        "event: message",
        "id: 3",
        "id",
        "retry: 10",
        "unknown: field",
        "data-other: no",
    ]
    for _ in range(random.choice([0, 0, 1, 3])):
        lines.insert(random.randint(0, len(lines)), random.choice(others))
    return "".join(f"{line}\n" for line in lines)


def sent(documents: Timed, random: Random) -> list[tuple[float, bytes]]:
    """Return the bytes of a stream, cut anywhere, with the times at which they arrive.

    The bytes of an event may begin to arrive before its time, but its last line ends at it: the LF of a CR LF there
    may follow later.
    """
    line_end = random.choice(["\n", "\r\n", "\r"])
    parts: list[tuple[float, bytes]] = [(0.0, b"\xef\xbb\xbf")] if random.random() < 0.3 else []
    if random.random() < 0.3:
        parts.append((0.0, f": keep-alive{line_end}{line_end}data{line_end}{line_end}".encode()))
    before_s = 0.0
    for at_s, document in documents:
        content = (written(document, random) + "\n").replace("\n", line_end).encode()
        cuts = sorted(
            random.randint(0, len(content)) for _ in range(random.choice([0, 0, 1, 2, 5]))
        )
        ends = [*cuts, len(content)]
        closed = len(content) - (line_end == "\r\n")
        for begin, end in zip([0, *cuts], ends, strict=True):
            early = random.uniform(before_s, at_s)
            moment = at_s if end >= closed else max(parts[-1][0] if parts else 0.0, early)
            parts.append((moment, content[begin:end]))
        before_s = at_s
    return list(joined(parts, random))


def joined(parts: Sequence[tuple[float, bytes]], random: Random) -> Iterator[tuple[float, bytes]]:
    """Yield the parts that are not empty; those of one time may arrive together."""
    held: tuple[float, bytes] | None = None
    for at_s, part in parts:
        if held is not None and held[0] == at_s and random.random() < 0.5:
            held = at_s, held[1] + part
            continue
        if held is not None and held[1]:
            yield held
        held = at_s, part
    if held is not None and held[1]:
        yield held


def check(
    answer: Answer,
    kind: str,
    parts: Sequence[tuple[float, bytes]],
    found: StreamedAnswer,
    case: str,
) -> None:
    """Assert that the client has read the answer; a message shows the stream."""
    story = f"{case}: {kind}, {answer}\n" + "\n".join(map(str, parts))
    assert (found.text, found.tokens, found.prompt_tokens) == (answer.text, len(answer.ids), 5), (
        story
    )
    assert found.ttft_s == pytest.approx(answer.first_s, abs=1e-3), story
    assert found.e2e_s == pytest.approx(answer.last_s, abs=1e-3), story
    assert found.finish_reason == "stop", story


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_stream_of_an_answer_has_its_counts_and_times(seed: int) -> None:
    for number in range(CASES):
        case = f"{seed}/{number}"
        random = Random(case)
        kind = random.choice(list(FORMS))
        answer = Answer.drawn(random)
        documents = FORMS[kind](answer, kind, random)
        parts = sent(documents, random)
        check(answer, kind, parts, ScriptedServer(parts).ask(kind).received.answer(), case)
        # What the verifiers read, one part after the other, are the same events.
        events = EventReader(httpx.Response(200, content=iter([part for _, part in parts])))
        read = [
            event.data if event.data == "[DONE]" else json.loads(event.data) for event in events
        ]
        assert read == [document for _, document in documents], case
