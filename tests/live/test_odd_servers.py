"""Servers as they are: ends that are none, forms that other clients read, connections that close, and their words."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from threading import Event
from typing import Any

import pytest
from http_servers import ReplyingHandler, running
from nightly import nightly_except
from streaming_server import FACTS

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.base import (
    Generation,
    GenerationRequest,
    ScoringRequest,
    ServerFacts,
    dialects,
    engines,
)
from specbench_kit.live.engines.client import (
    Patience,
    RequestFailedError,
    SentRequest,
    StreamClient,
)

KEY = "sk-marked-0123456789"
PATIENCE_S = 60.0
Data = dict[str, Any]


@dataclass
class ResponseScript:
    """The response of a server to every POST, and what became of it."""

    body: bytes = b""
    status: int = 200
    stays_open: bool = False
    closes_after: bool = False
    """Closes the connection after each answer without having said so."""
    facts: bool = True
    echoes: bool = False
    """Repeats the key that it was sent in its answers and errors."""
    requests: int = 0
    connections: int = 0
    released: Event = field(default_factory=Event)


def events(*documents: Data | str, ends: bool = True) -> bytes:
    texts = [
        document if isinstance(document, str) else json.dumps(document) for document in documents
    ]
    return "".join(f"data: {text}\n\n" for text in [*texts, *(["[DONE]"] if ends else [])]).encode()


@contextmanager
def serving(script: ResponseScript) -> Iterator[str]:
    """Yield HOST:PORT of a server that follows a script."""

    class ScriptHandler(ReplyingHandler):
        def setup(self) -> None:
            super().setup()
            script.connections += 1

        def do_GET(self) -> None:
            facts = FACTS.get(self.path) if script.facts else None
            self.reply(
                200 if facts else 404,
                self.seen(json.dumps(facts or {"detail": "Not Found"}).encode()),
            )

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            script.requests += 1
            if not script.stays_open:
                self.reply(script.status, self.seen(script.body))
                self.close_connection = script.closes_after
                return
            self.send_response(script.status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(f"{len(script.body):x}\r\n".encode() + script.body + b"\r\n")
            self.wfile.flush()
            script.released.wait(PATIENCE_S)
            self.close_connection = True

        def seen(self, content: bytes) -> bytes:
            authorization = self.headers.get("Authorization", "").encode()
            return content.replace(b"KEY", authorization) if script.echoes else content

    with running(ThreadingHTTPServer(("127.0.0.1", 0), ScriptHandler)) as port:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            script.released.set()


def ask(
    script: ResponseScript, kind: str, *, times: int = 1, retries: int = 0, key: str = ""
) -> list[SentRequest]:
    """Ask for answers one after the other over one client."""

    async def asked(host: str) -> list[SentRequest]:
        client = StreamClient(
            parse_server(f"it={kind}://{host}"), key, Patience(PATIENCE_S, retries)
        )
        try:
            return [
                await client.ask(Generation("a prompt", 4, Sampler(), 0, "a")) for _ in range(times)
            ]
        finally:
            await client.close()

    with serving(script) as host:
        return asyncio.run(asked(host))


def failure(script: ResponseScript, kind: str, **options: Any) -> str:
    with pytest.raises(RequestFailedError) as failed:
        ask(script, kind, **options)
    return str(failed.value)


def ending(kind: str, reason: str) -> bytes:
    """An answer of two tokens in the form of a kind of server, which ends for a reason of that server."""
    if kind == "sglang":
        meta = {"completion_tokens": 2, "finish_reason": {"type": reason}}
        return events({"text": "ab", "output_ids": [1, 2], "meta_info": meta})
    if kind == "tgi":
        details = {"finish_reason": reason, "generated_tokens": 2}
        return events(
            {"token": {"id": 1, "text": "a"}}, {"token": {"id": 2, "text": "b"}, "details": details}
        )
    if kind == "llama-cpp":
        return events(
            {"content": "ab", "tokens": [1, 2]}, {"content": "", "stop": True, "stop_type": reason}
        )
    text = {"delta": {"content": "ab"}} if "chat" in kind else {"text": "ab"}
    return events({"choices": [text]}, {"choices": [{**text, "finish_reason": reason}]})


KINDS = ("chat", "completions", "llama-cpp", "llama-cpp-chat", "sglang", "tgi", "vllm", "vllm-chat")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", "timeout"])
def test_an_answer_that_was_given_up_is_none(kind: str, reason: str) -> None:
    assert (
        failure(ResponseScript(ending(kind, reason)), kind)
        == f"the server gave the answer up: {reason}"
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *((kind, "length") for kind in KINDS),
        ("tgi", "eos_token"),
        ("llama-cpp", "eos"),
        ("llama-cpp", "limit"),
    ],
)
def test_an_answer_that_came_to_its_end_is_whole(kind: str, reason: str) -> None:
    (sent,) = ask(ResponseScript(ending(kind, reason)), kind)
    assert sent.received.answer().text in ("ab", "abab")


WITH_DONE = [(kind, True) for kind in KINDS]
WITHOUT_DONE = [(kind, False) for kind in KINDS]


# Each answer without [DONE] is waited for for a second.
@pytest.mark.parametrize(
    ("kind", "has_done"),
    nightly_except([*WITH_DONE, ("vllm", False), ("sglang", False)], [*WITH_DONE, *WITHOUT_DONE]),
)
def test_an_answer_ends_though_its_body_stays_open(kind: str, has_done: bool) -> None:
    body = ending(kind, "length")
    body = body if has_done else body.replace(b"data: [DONE]\n\n", b"")
    sent = ask(ResponseScript(body, stays_open=True), kind, times=2)
    assert [request.attempts for request in sent] == [1, 1]


CHAT = {"choices": [{"delta": {"content": "ab"}, "finish_reason": "stop"}]}
FORMS: dict[str, tuple[str, Sequence[Data], int | None]] = {
    "no tokens beside a text": (
        "chat",
        [CHAT, {"choices": [], "usage": {"completion_tokens": 0}}],
        None,
    ),
    "no choices in a keep-alive": ("chat", [{"choices": None}, CHAT], None),
    "no choices beside usage": (
        "chat",
        [CHAT, {"choices": None, "usage": {"completion_tokens": 2.0}}],
        2,
    ),
    "nulls everywhere": (
        "chat",
        [
            {
                "choices": [{"delta": None, "text": None, "logprobs": None}],
                "usage": None,
                "error": None,
            },
            CHAT,
        ],
        None,
    ),
    "a list of text parts": (
        "chat",
        [
            {
                "choices": [
                    {
                        "delta": {
                            "content": [
                                {"type": "text", "text": "a"},
                                {"type": "text", "text": "b"},
                            ]
                        }
                    }
                ]
            },
            CHAT,
        ],
        None,
    ),
    "whole numbers as others": (
        "sglang",
        [
            {
                "text": "ab",
                "output_ids": [1.0, 2.0],
                "meta_info": {"completion_tokens": 2.0, "finish_reason": None},
            }
        ],
        2,
    ),
    "nulls of llama.cpp": (
        "llama-cpp",
        [{"content": "ab", "tokens": [1, 2], "stop": False, "timings": None}],
        2,
    ),
    "nulls of tgi": (
        "tgi",
        [{"token": {"id": 1, "text": "ab", "special": None}, "details": None}],
        1,
    ),
    "no text of sglang": (
        "sglang",
        [{"text": None}, {"text": "ab", "meta_info": {"completion_tokens": 2}}],
        2,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_other_clients_read_are_read(form: str) -> None:
    kind, documents, tokens = FORMS[form]
    (sent,) = ask(ResponseScript(events(*documents)), kind)
    answer = sent.received.answer()
    assert (answer.text or "").startswith("ab")
    assert answer.ttft_s <= answer.e2e_s
    assert answer.tokens == tokens if tokens else answer.tokens > 0


WORDS = {
    "an error object": (
        b'{"error": {"message": "model x is not loaded"}}',
        "model x is not loaded",
    ),
    "an error text": (b'{"error": "model x is not loaded"}', "model x is not loaded"),
    "a page": (
        b"<html><body>Sign in first</body></html>",
        "<html><body>Sign in first</body></html>",
    ),
    "a plain answer": (b'{"choices": [{"text": "ab"}]}', '{"choices": [{"text": "ab"}]}'),
    "an error event": (events({"error": {"message": "out of memory"}}), "out of memory"),
}


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_no_stream_is_told_in_the_servers_words(words: str, kind: str) -> None:
    body, message = WORDS[words]
    assert message in failure(ResponseScript(body), kind)


def test_an_answer_that_is_counted_and_never_arrives_is_none() -> None:
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
    told = failure(ResponseScript(events(last)), "chat")
    assert "the answer is empty" in told
    assert "the model ended at once" not in told


CHOICE = {"choices": [{"delta": {}, "text": "", "finish_reason": "stop"}]}
ENDS_AT_ONCE = {
    "completions": (CHOICE, "give the kind chat or llama-cpp-chat or sglang-chat or vllm-chat"),
    "vllm": (CHOICE, "give the kind vllm-chat"),
    "llama-cpp": (
        {"content": "", "tokens": [], "stop": True, "stop_type": "eos"},
        "give the kind llama-cpp-chat",
    ),
    "chat": (CHOICE, "does the chat template of the server belong to its model?"),
}


@pytest.mark.parametrize("kind", ENDS_AT_ONCE)
def test_a_model_that_ends_at_once_is_told_with_the_kind_that_asks_in_its_template(
    kind: str,
) -> None:
    last, advice = ENDS_AT_ONCE[kind]
    told = failure(ResponseScript(events(last)), kind)
    assert told.startswith(
        "the answer is empty: no token arrived, as the model ended at once (stop); "
    )
    assert told.endswith(advice)
    assert ("an instruct model does so where it continues a raw text" in told) == (kind != "chat")


def test_a_gateway_that_lists_no_models_is_asked_for_the_one_that_is_named() -> None:
    async def facts(address: str) -> ServerFacts:
        client = StreamClient(parse_server(f"it={address}"))
        try:
            return await client.facts()
        finally:
            await client.close()

    with serving(ResponseScript(facts=False)) as host:
        assert asyncio.run(facts(f"chat://{host}#mine")) == ServerFacts()
        with pytest.raises(
            SkitError, match=r"answered 404: .*name yours: it=chat\+http://.*#MODEL"
        ):
            asyncio.run(facts(f"chat://{host}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_was_closed_while_idle_is_opened_anew_without_a_word(kind: str) -> None:
    script = ResponseScript(ending(kind, "length"), closes_after=True)
    sent = ask(script, kind, times=4)
    assert [request.reasons for request in sent] == [[]] * 4
    assert (script.requests, script.connections) == (4, 4)


@pytest.mark.parametrize("engine", list(engines.all()))
def test_engines_too_open_connections_anew(engine: str) -> None:
    script = ResponseScript(b'{"data": [{"id": "tiny"}]}', closes_after=True)
    with serving(script) as host:
        adapter = engines.get(engine)(f"http://{host}")
        assert [adapter.post("/any", {}) for _ in range(3)] == [{"data": [{"id": "tiny"}]}] * 3
        adapter.close()


def test_true_retries_name_their_reasons() -> None:
    with pytest.raises(RequestFailedError) as failed:
        ask(ResponseScript(b"busy", status=503), "chat", retries=1)
    assert failed.value.reasons == ["/v1/chat/completions answered 503: busy"]
    assert failed.value.attempts == 2


def of_client(script: ResponseScript) -> str:
    return failure(script, "chat", key=KEY)


def of_engine(script: ResponseScript) -> str:
    with serving(script) as host:
        adapter = engines.get("completions")(f"http://{host}")
        with pytest.raises(SkitError) as failed:
            adapter.target_tokens(ScoringRequest([1], [2], Sampler(), [0, 0]))
        return str(failed.value)


def of_engine_stream(script: ResponseScript) -> str:
    with serving(script) as host:
        adapter = engines.get("llama-cpp")(f"http://{host}")
        with pytest.raises(SkitError) as failed:
            list(adapter.generate(GenerationRequest([1], 2, Sampler(), 0)))
        return str(failed.value)


ECHOES = {
    "an error": ResponseScript(b"no such key: KEY", status=401),
    "busy": ResponseScript(b"wait, KEY", status=503),
    "an error event": ResponseScript(events({"error": {"message": "KEY is wrong"}})),
    "no event": ResponseScript(b"KEY"),
    "another form": ResponseScript(
        events({"choices": [{"index": 0, "token_ids": ["KEY"]}], "tokens": ["KEY"]})
    ),
    "a reason": ResponseScript(events({"choices": [{"text": "a", "finish_reason": "KEY"}]})),
    "a page": ResponseScript(b"<html>KEY</html>", status=502),
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("of", [of_client, of_engine, of_engine_stream])
def test_no_error_repeats_a_key(
    echo: str, of: Callable[[ResponseScript], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_API_KEY", f" {KEY}\n")
    ECHOES[echo].echoes = True
    line = of(ECHOES[echo])
    assert line
    assert KEY not in line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("of", [of_client, of_engine, of_engine_stream])
def test_no_error_ends_within_a_key(
    status: int, of: Callable[[ResponseScript], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_API_KEY", KEY)
    for length in range(170, 200, 5):
        line = of(ResponseScript(b"x" * length + b" KEY", status=status, echoes=True))
        assert KEY[:4] not in line


@pytest.mark.parametrize(
    ("kind", "documents", "expected"),
    [
        (
            "tgi",
            [{"model_id": "big", "max_total_tokens": 4096, "version": "3.1", "sha": None}],
            ServerFacts("big", 4096, "3.1"),
        ),
        ("sglang", [{"model_path": "big"}, {"context_length": 8}], ServerFacts("big", 8, None)),
        ("sglang", [{"model_path": "big"}, None], ServerFacts("big")),
        (
            "llama-cpp",
            [
                {"data": [{"id": "a.gguf", "owned_by": "llamacpp"}]},
                {"default_generation_settings": {"n_ctx": 512}, "build_info": "b1-c2"},
            ],
            ServerFacts("a.gguf", 512, "b1-c2"),
        ),
        ("llama-cpp", [{"data": []}, None], ServerFacts()),
    ],
)
def test_a_server_is_what_its_documents_say_in_the_fields_that_are_read(
    kind: str, documents: list[dict[str, object] | None], expected: ServerFacts
) -> None:
    assert dialects.get(kind)().facts(*documents) == expected


@pytest.mark.parametrize(
    ("kind", "documents", "message"),
    [
        (
            "tgi",
            [{"max_total_tokens": "4k"}],
            'max_total_tokens must be a whole number or null, not "4k"',
        ),
        (
            "llama-cpp",
            [{"data": []}, {"default_generation_settings": {"n_ctx": "all"}}],
            'default_generation_settings.n_ctx must be a whole number or null, not "all"',
        ),
        ("sglang", [{"model_path": 7}, None], "model_path must be text or null, not 7"),
    ],
)
def test_a_wrong_field_of_a_servers_document_is_named(
    kind: str, documents: list[dict[str, object] | None], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        dialects.get(kind)().facts(*documents)
