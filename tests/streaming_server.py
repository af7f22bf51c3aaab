"""A small HTTP server around a tiny model that streams its greedy answers in the forms of several engines.

It decodes plainly, or speculates with the continuation of an earlier bigram, which it verifies in one forward: then a
chunk holds every token of a verification.
"""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from os import _exit
from pathlib import Path
from threading import Event, Lock, Thread
from time import sleep
from typing import Any

import torch
from live_server import DRAFT, TARGET
from tiny_models import plain_logits

Body = dict[str, Any]
PATIENCE_S = 240
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
DRAFT_LENGTH = 4


@dataclass
class Behaviour:
    """What sets one server apart from another."""

    speculates: bool = False
    wrong: bool = False
    """Answers with another model's tokens."""
    slow_s: float = 0.0
    """Pause before every chunk."""
    key: str = ""
    """API key without which nothing is answered."""
    dies_after: int = 0
    """Number of whole answers after which the process ends in the middle of the next one."""
    refuses: int = 0
    """Number of requests that are answered by 503 at first."""
    breaks: int = 0
    """Number of streams that end in the middle at first."""
    breaks_at: set[int] = field(default_factory=set)
    """Positions of further requests whose streams end in the middle."""
    stalls_at: int = 0
    """Position of the request that waits before its first token until the engine is released."""
    counts: bool = True
    """Names tokens and reports acceptance."""
    has_usage: bool = True
    """States the number of all tokens at the end."""
    cached: int = 0
    """Prompt tokens that it says it had cached."""


@dataclass
class Engine:
    """The model, what it did so far, and its counters."""

    behaviour: Behaviour
    lock: Lock = field(default_factory=Lock)
    stalled: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)
    answers: int = 0
    requests: list[tuple[str, Body]] = field(default_factory=list)
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def decode(self, prompt: str, count: int) -> Iterator[tuple[list[int], int, int]]:
        """Yield the tokens of every forward, and how many tokens were drafted and accepted in it."""
        model = DRAFT if self.behaviour.wrong else TARGET
        tokens = [LETTERS.find(letter) % 64 for letter in prompt[-40:]]
        while count:
            draft = continuation(tokens)[: count - 1] if self.behaviour.speculates else []
            with torch.inference_mode():
                best = plain_logits(model, [*tokens, *draft]).argmax(-1).tolist()[len(tokens) - 1 :]
            accepted = next((place for place, token in enumerate(draft) if best[place] != token), len(draft))
            new = best[: accepted + 1]
            tokens += new
            count -= len(new)
            yield new, len(draft), accepted


def continuation(tokens: list[int]) -> list[int]:
    """What followed the last two tokens when they stood together before."""
    for place in range(len(tokens) - 3, -1, -1):
        if tokens[place : place + 2] == tokens[-2:]:
            return tokens[place + 2 : place + 2 + DRAFT_LENGTH]
    return []


def text_of(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def openai_chunks(engine: Engine, body: Body, *, chat: bool) -> Iterator[Body]:
    prompt = body["messages"][0]["content"] if chat else body["prompt"]
    behaviour, total, rounds, drafted, accepted = engine.behaviour, 0, 0, 0, 0
    if chat:
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    for new, draft_length, hits in engine.decode(prompt, body["max_tokens"]):
        total, rounds, drafted, accepted = total + len(new), rounds + 1, drafted + draft_length, accepted + hits
        part: Body = {"delta": {"content": text_of(new)}} if chat else {"text": text_of(new)}
        if body.get("return_token_ids") and behaviour.counts:
            part["token_ids"] = new
        done = "length" if total == body["max_tokens"] else None
        yield {"choices": [{"index": 0, "finish_reason": done, **part}]}
    last: Body = {"choices": []}
    if behaviour.has_usage:
        last["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": total}
        last["usage"]["prompt_tokens_details"] = {"cached_tokens": behaviour.cached}
    if behaviour.counts and behaviour.speculates:
        counts = {"num_spec_steps": rounds, "num_draft_tokens": drafted, "acceptance_histogram": {"1": accepted}}
        last["metrics"] = {"speculative_decoding": counts}
    engine.rounds, engine.drafted, engine.accepted = (
        engine.rounds + rounds,
        engine.drafted + drafted,
        engine.accepted + accepted,
    )
    yield last


def llama_chunks(engine: Engine, body: Body) -> Iterator[Body]:
    total, drafted, accepted = 0, 0, 0
    for new, draft_length, hits in engine.decode(body["prompt"], body["n_predict"]):
        total, drafted, accepted = total + len(new), drafted + draft_length, accepted + hits
        for token in new:  # llama.cpp sends the tokens of a verification one by one
            yield {"content": text_of([token]), "tokens": [token], "stop": False}
    timings = {"predicted_n": total, "cache_n": engine.behaviour.cached}
    if drafted:  # llama.cpp leaves the counts out where nothing was drafted
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    yield {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "timings": timings, "tokens_evaluated": 9}


def sglang_chunks(engine: Engine, body: Body) -> Iterator[Body]:
    tokens: list[int] = []
    sampling, rounds = body["sampling_params"], 0
    for new, _, _ in engine.decode(body["text"], sampling["max_new_tokens"]):
        tokens, rounds = [*tokens, *new], rounds + 1
        is_last = len(tokens) == sampling["max_new_tokens"]
        meta = {"completion_tokens": len(tokens), "prompt_tokens": 9, "finish_reason": None}
        meta |= {"finish_reason": {"type": "length"}, "spec_verify_ct": rounds} if is_last else {}
        yield {"text": text_of(tokens), "output_ids": tokens, "meta_info": meta}


def tgi_chunks(engine: Engine, body: Body) -> Iterator[Body]:
    total, count = 0, body["parameters"]["max_new_tokens"]
    for new, _, _ in engine.decode(body["inputs"], count):
        for token in new:
            total += 1
            details = {"finish_reason": "length", "generated_tokens": total} if total == count else None
            yield {"token": {"id": token, "text": text_of([token]), "special": False}, "details": details}


ROUTES = {
    "/v1/completions": lambda engine, body: openai_chunks(engine, body, chat=False),
    "/v1/chat/completions": lambda engine, body: openai_chunks(engine, body, chat=True),
    "/completion": llama_chunks,
    "/generate": sglang_chunks,
    "/generate_stream": tgi_chunks,
}
FACTS = {
    "/v1/models": {"data": [{"id": "tiny", "max_model_len": 160}]},
    "/version": {"version": "0.0-tiny"},
    "/props": {"default_generation_settings": {"n_ctx": 160}, "build_info": "b1-tiny"},
    "/get_model_info": {"model_path": "tiny"},
    "/info": {"model_id": "tiny", "max_total_tokens": 160, "version": "0.0-tiny"},
}


def handler_of(engine: Engine) -> type[BaseHTTPRequestHandler]:
    behaviour = engine.behaviour

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/metrics":
                names = {"drafts": "rounds", "draft_tokens": "drafted", "accepted_tokens": "accepted"}
                lines = [
                    f'vllm:spec_decode_num_{name}_total{{model_name="tiny"}} {getattr(engine, own)}.0'
                    for name, own in names.items()
                ]
                self.reply(200, "\n".join(lines).encode())
            elif behaviour.key and self.headers["Authorization"] != f"Bearer {behaviour.key}":
                self.reply(401, b'{"error": "no such key"}')
            else:
                facts = FACTS.get(self.path)
                self.reply(200 if facts else 404, json.dumps(facts).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with engine.lock:
                engine.requests.append((self.path, body))
                if behaviour.refuses:
                    behaviour.refuses -= 1
                    self.reply(503, b"busy: try later")
                    return
                self.stream(body)

        def stream(self, body: Body) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if len(engine.requests) == behaviour.stalls_at:
                engine.stalled.set()
                engine.released.wait(PATIENCE_S)
            for number, chunk in enumerate(ROUTES[self.path](engine, body)):
                sleep(behaviour.slow_s)
                if number == 3 and behaviour.dies_after and engine.answers >= behaviour.dies_after:
                    _exit(9)
                if number == 3 and (behaviour.breaks or len(engine.requests) in behaviour.breaks_at):
                    behaviour.breaks = max(0, behaviour.breaks - 1)
                    self.close_connection = True
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.event(json.dumps(chunk))
            if self.path.startswith("/v1"):
                self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
            engine.answers += 1

        def event(self, data: str) -> None:
            content = f"data: {data}\n\n".encode()
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

        def reply(self, status: int, payload: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, *arguments: Any) -> None:
            return

    return Handler


@contextmanager
def streaming_server(
    tls: tuple[Path, Path] | None = None, port: int = 0, **behaviour: Any
) -> Iterator[tuple[str, Engine]]:
    """A server in a thread: yields its HOST:PORT, and its engine; `tls` is a certificate with its key."""
    engine = Engine(Behaviour(**behaviour))
    server = ThreadingHTTPServer(("127.0.0.1", port), handler_of(engine))
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", engine
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def server_process(port: int = 0, **behaviour: Any) -> Iterator[tuple[BaseProcess, int]]:
    """A server in a process of its own, forked from this one, and its port; make it before any thread."""
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(port, behaviour, theirs), daemon=True)
    process.start()
    try:
        yield process, ours.recv()
    finally:
        process.kill()
        process.join(10)


def _serve(port: int, behaviour: Body, connection: Connection) -> None:
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(("127.0.0.1", port), handler_of(Engine(Behaviour(**behaviour))))
    connection.send(server.server_port)
    server.serve_forever()
