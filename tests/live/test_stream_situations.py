"""Streams as public servers send them: what arrives when is what counts, however a server cuts, names and orders it."""

import json
import zlib
from typing import Any

import pytest
from scripted_streams import Part, answer, chat, sse

from specbench_kit.live.engines.answers import DraftCounts, StreamedAnswer
from specbench_kit.live.engines.base import dialects
from specbench_kit.live.engines.client import RequestFailedError, SentRequest
from specbench_kit.live.engines.counters import change, read_counters, read_positions
from specbench_kit.studies.ab.figures import gaps_s

TEN = [f"w{number} " for number in range(10)]
"""Ten tokens, of which one arrives every tenth of a second."""
LAST_S = pytest.approx(1.0, abs=1e-3)
FIRST_S = pytest.approx(0.1, abs=1e-3)


def evenly(texts: list[str]) -> list[tuple[float, str]]:
    """Return texts with times from 0.1 s to 1 s."""
    return [(0.1 + 0.9 * place / (len(texts) - 1), text) for place, text in enumerate(texts)]


TOKENS = [(at_s, {"content": text}) for at_s, text in evenly(TEN)]


def check(sent: SentRequest, text: str = "".join(TEN)) -> StreamedAnswer:
    """Assert the counts and times that the ten tokens have, and return their answer."""
    found = sent.received.answer()
    assert (found.text, found.tokens) == (text, 10)
    assert (found.ttft_s, found.e2e_s, found.tpot_s) == (
        FIRST_S,
        LAST_S,
        pytest.approx(0.1, abs=1e-4),
    )
    return found


def test_more_chunks_than_tokens_end_with_the_last_chunk() -> None:
    letters = [(at_s, {"content": letter}) for at_s, letter in evenly(list("".join(TEN)))]
    found = check(answer(chat(*letters, usage=10)))
    assert len(found.bursts) == len("".join(TEN)) > found.tokens
    assert found.bursts[-1].tokens == found.bursts[0].tokens == 1
    # Each of the other nine tokens has a gap, and they fill the time between the first and the last arrival.
    assert (len(gaps_s([found])), sum(gaps_s([found]))) == (9, pytest.approx(0.9))


def test_an_answer_of_one_token_in_several_chunks_ends_with_the_last_of_them() -> None:
    found = answer(
        chat((0.1, {"content": "a"}), (0.4, {"content": "b"}), usage=1)
    ).received.answer()
    assert (found.tokens, found.ttft_s, found.e2e_s, found.tpot_s) == (1, 0.1, 0.4, None)


def with_reason(reason: Any) -> Any:
    def changed(document: dict[str, Any]) -> dict[str, Any]:
        for choice in document["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or reason
        return document

    return changed


@pytest.mark.parametrize("reason", ["", None])
def test_an_empty_reason_in_every_chunk_ends_nothing(reason: str | None) -> None:
    # The pauses are longer than a client waits for anything after an answer's end.
    deltas = [(20 * at_s, {"content": text}) for at_s, text in evenly(TEN)]
    found = answer(chat(*deltas, usage=10, change=with_reason(reason))).received.answer()
    assert (found.text, found.tokens, found.finish_reason) == ("".join(TEN), 10, "stop")
    assert (found.ttft_s, found.e2e_s) == (pytest.approx(2), pytest.approx(20))


def test_a_text_after_the_reason_belongs_to_the_answer() -> None:
    parts = [
        (3 * at_s, sse({"choices": [{"delta": {"content": text}}]})) for at_s, text in evenly(TEN)
    ]
    parts.insert(4, (1.2, sse({"choices": [{"delta": {}, "finish_reason": "stop"}]})))
    found = answer([*parts, (3.0, sse("[DONE]"))]).received.answer()
    assert (found.text, found.ttft_s, found.e2e_s) == (
        "".join(TEN),
        pytest.approx(0.3),
        pytest.approx(3),
    )


def fields_of(text: str) -> dict[str, dict[str, Any]]:
    """Return a delta with a text for each field that a server of this kind puts one in."""
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"arguments": text}}
    return {
        "a content": {"content": text},
        "parts of a content": {"content": [{"type": "text", "text": text}]},
        "a thought among the parts": {
            "content": [
                {
                    "type": "thinking",
                    "thinking": [{"type": "text", "text": text}],
                    "signature": "c2ln",
                }
            ]
        },
        "reasoning_content": {"content": None, "reasoning_content": text},
        "reasoning": {"content": "", "reasoning": text},
        "reasoning under both names": {"reasoning": text, "reasoning_content": text},
        "thinking": {"thinking": text},
        "reasoning with its details": {
            "reasoning": text,
            "reasoning_details": [
                {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
            ],
        },
        "a call of a tool": {"content": None, "tool_calls": [call]},
        "a call of a function": {"function_call": {"arguments": text}},
        "a refusal": {"refusal": text},
        "a transcript": {"audio": {"id": "audio_1", "transcript": text, "expires_at": 1}},
        "a field of tomorrow": {"thoughts_v9": {"type": "x", "parts": [text]}},
    }


@pytest.mark.parametrize("field", fields_of(""))
def test_what_arrives_counts_in_whatever_field(field: str) -> None:
    deltas = [(at_s, {"role": "assistant", **fields_of(text)[field]}) for at_s, text in evenly(TEN)]
    opening = (
        0.02,
        {"role": "assistant", "name": "a model", "content": "", "tool_calls": [], "refusal": None},
    )
    sent = answer(chat(opening, *deltas, usage=10))
    check(sent)
    assert sent.received.reply == (
        "".join(TEN).strip() if field in ("a content", "parts of a content") else ""
    )


def test_a_text_and_then_calls_of_tools_end_with_the_last_call() -> None:
    text = [(at_s, {"content": word}) for at_s, word in evenly(TEN)[:3]]
    calls = [(at_s, fields_of(word)["a call of a tool"]) for at_s, word in evenly(TEN)[3:]]
    named = (
        0.35,
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "find"}}]},
    )
    sent = answer(chat(*text, named, *calls, usage=10, change=with_reason(None)))
    check(sent, "".join(TEN[:3]) + "find" + "".join(TEN[3:]))


def test_an_answer_that_ends_with_a_call_of_a_tool_is_whole() -> None:
    parts = chat((0.1, fields_of("{}")["a call of a tool"]), usage=3)
    parts[1] = (0.6, sse({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}))
    assert answer(parts).received.answer().finish_reason == "tool_calls"


PLAIN = chat(*TOKENS, usage=10)


def around(before: bytes = b"", after: bytes = b"") -> list[Part]:
    return [(at_s, before + part + after) for at_s, part in PLAIN]


def replaced(old: bytes, new: bytes) -> list[Part]:
    return [(at_s, part.replace(old, new)) for at_s, part in PLAIN]


def counted(lag: int | None) -> list[Part]:
    """Return the stream with usage in every chunk: null, or the tokens so far, some of them late."""
    counts = [None if lag is None else max(1, count - lag) for count in range(1, 11)]
    usages = [
        None if count is None else {"prompt_tokens": 7, "completion_tokens": count}
        for count in counts
    ]
    deltas = [
        (at_s, sse({"choices": [{"delta": delta}], "usage": usage}))
        for (at_s, delta), usage in zip(TOKENS, usages, strict=True)
    ]
    return [*deltas, *PLAIN[10:]]


def inside(place: int, *others: bytes) -> list[Part]:
    """Return the stream with other events 10 ms after one of its own."""
    return [
        *PLAIN[: place + 1],
        *((PLAIN[place][0] + 0.01, other) for other in others),
        *PLAIN[place + 1 :],
    ]


def compressed(kind: str) -> list[Part]:
    packer = zlib.compressobj(wbits=31 if kind == "gzip" else 15)
    packed = [
        (at_s, packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH)) for at_s, part in PLAIN
    ]
    return [*packed, (1.5, packer.flush())]


NO_CHOICE = sse({"choices": []})
OTHER_ANSWER = sse(
    {"choices": [{"index": 1, "delta": {"content": "of a second answer"}, "finish_reason": "stop"}]}
)
FILTERS = sse({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]})
HELD = {"choices": [{"delta": {}, "logprobs": {"content": []}}]}

SITUATIONS: dict[str, list[Part]] = {
    "a byte order mark": [(0.05, b"\xef\xbb\xbf"), *PLAIN],
    "a byte order mark in two parts": [(0.05, b"\xef\xbb"), (0.06, b"\xbf"), *PLAIN],
    "lines that end in CR": replaced(b"\n", b"\r"),
    "lines that end in CR LF": replaced(b"\n", b"\r\n"),
    "data over several lines": replaced(b'"delta": ', b'\ndata: "delta":\ndata: '),
    "no blank after data:": replaced(b"data: ", b"data:"),
    "comments that keep alive": around(b": OPENROUTER PROCESSING\n\n", b":\n\n"),
    "names of events": around(b"event: message\n"),
    "identities and times of reconnection": around(b"id: 7\nretry: 3000\n"),
    "events without data": around(b"data\n\n", b"data:\n\nevent: ping\n\n"),
    "events of other names": inside(
        3, b"event: ping\ndata: 2026\n\n", b'event: timing\ndata: {"ms": 4}\n\n'
    ),
    "no [DONE]": PLAIN[:-1],
    "no empty line at the end": [*PLAIN[:-1], (1.5, b"data: [DONE]")],
    "usage null in every chunk": counted(None),
    "running usage in every chunk": counted(0),
    "running usage that is late": counted(2),
    "no choices": inside(4, NO_CHOICE, b'data: {"choices": null}\n\n'),
    "what a filter found": [(0.03, FILTERS), *PLAIN],
    "a second answer": inside(4, OTHER_ANSWER),
    "a role alone at first": [(0.02, sse({"choices": [{"delta": {"role": "assistant"}}]})), *PLAIN],
    "an empty content at first": [(0.02, sse({"choices": [{"delta": {"content": ""}}]})), *PLAIN],
    "a keep-alive that is no token": inside(6, sse(HELD)),
    "usage before the reason": [*PLAIN[:10], PLAIN[11], PLAIN[10], PLAIN[12]],
    "usage some time after the reason": [*PLAIN[:-2], (2.4, PLAIN[-2][1]), (9.0, PLAIN[-1][1])],
    "comments without an end after the reason": [
        *PLAIN[:-1],
        *((2.0 + at_s, b": alive\n\n") for at_s in range(99)),
    ],
    "what follows [DONE]": [*PLAIN, (2.0, b": bye\n\n")],
    "gzip": compressed("gzip"),
    "deflate": compressed("deflate"),
    "very long lines": [(0.05, b": " + b"x" * 300_000 + b"\n\n"), *PLAIN],
}
ENCODINGS = {"gzip": "gzip", "deflate": "deflate"}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_same_answer_has_the_same_counts_and_times_in_every_situation(situation: str) -> None:
    encoding = {"content_encoding": ENCODINGS[situation]} if situation in ENCODINGS else {}
    check(answer(SITUATIONS[situation], **encoding))


def test_tokens_that_only_their_log_probabilities_name_arrive_too() -> None:
    """As where a server holds a text back, such as that of a tool's call, and sends what it drew."""
    drawn = [{"token": text, "logprob": -0.1} for text in TEN]
    parts = [
        (at_s, sse({"choices": [{"delta": {}, "logprobs": {"content": [entry]}}]}))
        for (at_s, _), entry in zip(TOKENS, drawn, strict=True)
    ]
    found = check(answer([*parts, *PLAIN[10:]]), text="")
    assert found.counted_by == "logprobs"


def test_a_connection_that_breaks_after_the_end_takes_nothing_from_the_answer() -> None:
    check(answer(PLAIN, breaks=True))
    check(answer(PLAIN[:-1], breaks=True))
    with pytest.raises(RequestFailedError, match="peer closed connection"):
        answer(PLAIN[:8], breaks=True)


def test_characters_that_arrive_in_two_parts_are_whole() -> None:
    text = "naïve 🙂\u2028 \x85 end"
    content = sse({"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]})
    raw = content.replace(json.dumps(text).encode(), json.dumps(text, ensure_ascii=False).encode())
    for cut in range(1, len(raw)):
        found = answer([(0.1, raw[:cut]), (0.2, raw[cut:])]).received.answer()
        # The first of the two line ends closes the line of data, the second one the event.
        assert (found.text, found.ttft_s) == (text, 0.2)


def test_a_proxy_that_holds_everything_back_makes_one_burst() -> None:
    found = answer([(2.0, b"".join(part for _, part in PLAIN))]).received.answer()
    assert (found.tokens, found.ttft_s, found.e2e_s, len(found.bursts)) == (10, 2.0, 2.0, 1)


FAILURES: dict[str, tuple[list[Part], dict[str, str], str]] = {
    "an error between the chunks": (
        inside(4, sse({"error": {"message": "out of memory"}})),
        {},
        "broke off: out of",
    ),
    "an error under its name": (
        inside(4, b'event: error\ndata: {"message": "out of memory"}\n\n'),
        {},
        "the server broke off: out of memory",
    ),
    "an error in plain words": (
        inside(4, b"event: error\ndata: out of memory\n\n"),
        {},
        "broke off: out of memory",
    ),
    "an error on a line of its own": (
        [*PLAIN[:5], (0.6, b'error: {"code": 500, "message": "out of memory"}\n\n')],
        {},
        "the stream ended before the answer did; the server said: out of memory",
    ),
    "a page in the middle": (
        [*PLAIN[:5], (0.6, b"<html>502 Bad Gateway</html>")],
        {},
        "the server said: <html>502 Bad Gateway</html>",
    ),
    "an end within an event": (
        [*PLAIN[:5], (0.6, PLAIN[5][1][:30])],
        {},
        "the stream ended within an event",
    ),
    "an answer that is no stream": (
        [(0.6, b'{"object": "chat.completion", "choices": []}')],
        {},
        "no token arrived, and no event; the server said: {",
    ),
    "lines of JSON": (
        [(0.6, b'{"message": {"content": "a"}, "done": false}\n')],
        {},
        'no event; the server said: {"message"',
    ),
    "no empty lines between events": (
        [(at_s, part.replace(b"\n\n", b"\n")) for at_s, part in PLAIN],
        {},
        "are its events separated by empty lines?",
    ),
    "what is not compressed as it says": (
        PLAIN,
        {"content_encoding": "gzip"},
        "Error -3 while decompressing",
    ),
    "counts without an answer": (
        [PLAIN[11], PLAIN[12]],
        {},
        "the answer is empty: no token arrived",
    ),
}


@pytest.mark.parametrize("situation", FAILURES)
def test_what_is_no_whole_answer_is_told_in_one_line(situation: str) -> None:
    parts, headers, words = FAILURES[situation]
    with pytest.raises(RequestFailedError) as failed:
        answer(parts, **headers)
    assert words in str(failed.value)
    assert len(str(failed.value).splitlines()) == 1


def test_an_old_llama_cpp_says_only_that_an_answer_has_ended() -> None:
    parts = [
        (0.1, sse({"content": "a", "tokens": [1], "stop": False})),
        (0.2, sse({"content": "", "stop": True})),
    ]
    assert answer(parts, "llama-cpp").received.answer().finish_reason == "stop"


SGLANG = {
    "before 0.5.11": {"spec_draft_token_num": 20, "spec_accept_token_num": 6},
    "0.5.11": {
        "spec_proposed_drafts": 20,
        "spec_accepted_drafts": 6,
        "spec_accept_histogram": [1, 0, 3],
    },
    "from 0.5.12 on": {
        "spec_num_proposed_drafts": 20,
        "spec_num_correct_drafts": 6,
        "spec_correct_drafts_histogram": [1, 0, 3],
    },
}


@pytest.mark.parametrize("version", SGLANG)
def test_counts_of_every_version_of_sglang(version: str) -> None:
    counts = {"spec_verify_ct": 4, **SGLANG[version]}
    first = None if version == "before 0.5.11" else 3
    meta = {"completion_tokens": 11, **counts}
    read = dialects.get("sglang")().read(json.dumps({"text": "a", "meta_info": meta}))
    assert read.drafts == DraftCounts(4, 20, 6, first)
    for details in (counts, [counts]):
        read = dialects.get("chat")().read(
            json.dumps({"choices": [], "sglext": {"spec_tokens_details": details}})
        )
        assert read.drafts == DraftCounts(4, 20, 6, first)


def test_counts_in_the_usage_of_a_gateway() -> None:
    details = {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 14}
    read = dialects.get("chat")().read(
        json.dumps({"usage": {"completion_tokens_details": details}})
    )
    assert read.drafts == DraftCounts(None, 20, 6)
    nothing = dict.fromkeys(details, 0)
    assert (
        dialects.get("chat")()
        .read(json.dumps({"usage": {"completion_tokens_details": nothing}}))
        .drafts
        is None
    )


METRICS = {
    "vllm": (
        "vllm:spec_decode_num_{}_total",
        "drafts",
        "draft_tokens",
        "accepted_tokens",
        "accepted_tokens_per_pos",
    ),
    "llama.cpp": (
        "llamacpp:spec_decode_num_{}_total",
        *("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"),
    ),
}


@pytest.mark.parametrize("server", METRICS)
def test_counters_of_servers_with_counts_of_their_rounds(server: str) -> None:
    form, rounds, drafted, accepted, by_position = METRICS[server]
    lines = [
        f"# TYPE {form.format(rounds)} counter",
        f"{form.format(rounds)} 4",
        f"{form.format(drafted)} 20",
        f"{form.format(accepted)} 6",
        f'{form.format(by_position)}{{position="0"}} 3',
        f'{form.format(by_position)}{{position="1"}} 3',
    ]
    assert read_counters("\n".join(lines)) == {
        "rounds": 4,
        "drafted": 20,
        "accepted": 6,
        "accepted_first": 3,
    }


@pytest.mark.parametrize("server", METRICS)
def test_accepted_tokens_by_their_place_in_the_draft(server: str) -> None:
    form, *_, by_position = METRICS[server]
    name = form.format(by_position)
    lines = [f"# TYPE {name} counter"]
    lines += [
        f'{name}{{engine="{engine}",model_name="m",position="{place}"}} {count}.0'
        for engine in (0, 1)
        for place, count in enumerate((9, 5, 2))
    ]
    # A library of counters adds when each was made.
    lines += [f'{name.removesuffix("_total")}_created{{engine="0",position="0"}} 1.7e9']
    assert read_positions("\n".join(lines)) == {0: 18.0, 1: 10.0, 2: 4.0}
    assert read_positions(f"{form.format('drafts')} 4") == {}


def test_counters_of_tensorrt_llm_by_position_and_in_all() -> None:
    by_position = [
        f'trtllm_spec_decode_{kind}_tokens_total{{engine_type="trtllm",token_position="{place}"}} {count}'
        for kind, counts in (("drafted", (4, 4, 4)), ("accepted", (3, 2, 1)))
        for place, count in enumerate(counts)
    ]
    assert read_counters("\n".join(by_position)) == {
        "rounds": 4,
        "drafted": 12,
        "accepted": 6,
        "accepted_first": 3,
    }
    in_all = "trtllm_spec_decode_num_draft_tokens_total 12\ntrtllm_spec_decode_num_accepted_tokens_total 6\n"
    assert read_counters(in_all) == {"drafted": 12, "accepted": 6}


def test_sglang_counts_its_verifications_alone() -> None:
    text = 'sglang:spec_verify_calls_total{model="m"} 40\nsglang:spec_accept_rate{model="m"} 0.7\n'
    assert read_counters(text) == {"rounds": 40}
    assert change({"rounds": 30}, {"rounds": 40}) == DraftCounts(10)
