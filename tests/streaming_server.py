"""A small HTTP server around a tiny model that streams its answers in the forms of several engines.

It decodes plainly, or speculates and verifies drafts in one forward: then a chunk holds every token of a verification.
Greedy drafts are the continuation of an earlier bigram; at a temperature above 0 a draft model draws them.
"""

import json
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from os import _exit
from pathlib import Path
from random import Random
from threading import Event, Lock
from time import sleep
from typing import Any, NamedTuple

import torch
from http_servers import running
from live_server import DRAFT, TARGET
from tiny_models import plain_logits
from transformers import PreTrainedModel

Body = dict[str, Any]
PATIENCE_S = 240
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
DRAFT_LENGTH = 4


@dataclass
class Behaviour:
    """The behaviour that sets one server apart from another."""

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
    ends_with: str = ""
    """Letters that end an answer; a verification commits what it accepted after them all the same."""
    reports_drafts: bool = True
    """Reports acceptance with every answer, and not by its counters alone."""
    draft_length: int = DRAFT_LENGTH
    drafts_by_model: bool = False
    """Drafts greedily with the draft model, whose tokens are accepted more often than those of a bigram."""
    ignores_seeds: bool = False
    verification: str = "ratio"
    """How drafts are verified at a temperature above 0; see `sampled`."""
    miscount: Callable[[dict[str, float]], dict[str, float]] = lambda counts: counts
    """What becomes of its counters before anybody reads them."""


@lru_cache(maxsize=100_000)
def last_logits(model: PreTrainedModel, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return a model's logits after the last tokens of a text; many requests of a test meet the same texts."""
    with torch.inference_mode():
        return plain_logits(model, tokens)[-DRAFT_LENGTH - 1 :].clone()


class Forward(NamedTuple):
    """The tokens that one forward adds to an answer, and how many tokens were drafted and accepted in it."""

    tokens: list[int]
    drafted: int
    accepted: int
    is_last: bool
    ended: bool

    @property
    def finish_reason(self) -> str | None:
        return None if not self.is_last else "stop" if self.ended else "length"


def agreed(best: list[int], draft: list[int]) -> list[int]:
    """Return the tokens that a greedy verification commits."""
    accepted = next(
        (position for position, token in enumerate(draft) if best[position] != token), len(draft)
    )
    return best[: accepted + 1]


def drawn_draft(
    tokens: list[int], temperature: float, random: Random, behaviour: Behaviour
) -> tuple[list[int], list[list[float]]]:
    """Tokens of the draft model, and its distributions; drawn from them unless the verification says `argmax`."""
    draft: list[int] = []
    likely: list[list[float]] = []
    for _ in range(behaviour.draft_length):
        row = torch.softmax(last_logits(DRAFT, (*tokens, *draft))[-1] / temperature, -1).tolist()
        is_argmax = behaviour.verification == "argmax"
        draft.append(
            max(range(64), key=row.__getitem__) if is_argmax else random.choices(range(64), row)[0]
        )
        likely.append(row)
    return draft, likely


def sampled(
    rows: list[list[float]],
    draft: list[int],
    likely: list[list[float]],
    random: Random,
    verification: str,
) -> list[int]:
    """Return the tokens that a verification of drawn tokens commits.

    `ratio` accepts a token with chance p / q and draws another from the residual, as it should be. `point` takes the
    draft for certain (q = 1): fewer tokens are accepted, and the distribution is right. `argmax` is told that its most
    likely tokens were drawn, `any` accepts them without a look at p, and `no residual` draws the other one from p.
    """
    new: list[int] = []
    for token, row, q in zip(draft, rows, likely, strict=False):
        belief = (
            [float(candidate == token) for candidate in range(64)] if verification == "point" else q
        )
        if verification == "any" or random.random() < row[token] / belief[token]:
            new.append(token)
            continue
        residual = [max(0.0, p - drafted) for p, drafted in zip(row, belief, strict=True)]
        return [
            *new,
            random.choices(range(64), row if verification == "no residual" else residual)[0],
        ]
    return [*new, random.choices(range(64), rows[len(draft)])[0]]


@dataclass
class StreamingEngine:
    """The model, what it did so far, and its counters."""

    behaviour: Behaviour
    lock: Lock = field(default_factory=Lock)
    stalled: Event = field(default_factory=Event)
    released: Event = field(default_factory=Event)
    answers: int = 0
    requests: list[tuple[str, Body]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """The counters of `/metrics`: rounds with a draft, drafted and accepted tokens, and first tokens accepted."""

    def decode(
        self, prompt: str, count: int, temperature: float = 0.0, seed: int = 0
    ) -> Iterator[Forward]:
        """Yield the forwards of an answer: the prompt's, which drafts nothing, and those of its rounds."""
        model, behaviour = DRAFT if self.behaviour.wrong else TARGET, self.behaviour
        tokens = [LETTERS.find(letter) % 64 for letter in prompt[-40:]]
        ends, is_first = {LETTERS.index(end) for end in behaviour.ends_with}, True
        random = Random() if behaviour.ignores_seeds else Random(f"{seed}/{prompt}")
        while count > 0:
            if not behaviour.speculates or is_first:
                draft, likely = [], []
            elif temperature:
                draft, likely = drawn_draft(tokens, temperature, random, behaviour)
            elif behaviour.drafts_by_model:
                draft, likely = drawn_draft(
                    tokens, 1.0, random, replace(behaviour, verification="argmax")
                )
            else:
                draft, likely = continuation(tokens)[: min(count - 1, behaviour.draft_length)], []
            logits = last_logits(model, (*tokens, *draft))[-len(draft) - 1 :]
            if temperature:
                rows = torch.softmax(logits / temperature, -1).tolist()
                new = sampled(rows, draft, likely, random, behaviour.verification)
            else:
                new = agreed(logits.argmax(-1).tolist(), draft)
            accepted, tokens, is_first = len(new) - 1, tokens + new, False
            stop = next((position for position, token in enumerate(new) if token in ends), None)
            sent = new[:count] if stop is None else new[: stop + 1][:count]
            count = 0 if stop is not None else count - len(sent)
            yield Forward(sent, len(draft), accepted, is_last=not count, ended=stop is not None)


def continuation(tokens: list[int]) -> list[int]:
    """Return the tokens that followed the last two tokens when they stood together before."""
    for position in range(len(tokens) - 3, -1, -1):
        if tokens[position : position + 2] == tokens[-2:]:
            return tokens[position + 2 : position + 2 + DRAFT_LENGTH]
    return []


def text_of(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def openai_chunks(engine: StreamingEngine, body: Body, *, chat: bool) -> Iterator[Body]:
    prompt = "".join(message["content"] for message in body["messages"]) if chat else body["prompt"]
    behaviour, total, rounds, verified = engine.behaviour, 0, list[Forward](), -1
    if chat:
        yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    for forward in engine.decode(prompt, body["max_tokens"], body["temperature"], body["seed"]):
        new, total = forward.tokens, total + len(forward.tokens)
        rounds += [forward] if forward.drafted else []
        verified += 1  # all but the first, which is the prompt's
        part: Body = {"delta": {"content": text_of(new)}} if chat else {"text": text_of(new)}
        if body.get("return_token_ids") and behaviour.counts:
            part["token_ids"] = new
        yield {"choices": [{"index": 0, "finish_reason": forward.finish_reason, **part}]}
    last: Body = {"choices": []}
    if behaviour.has_usage:
        last["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": total}
        last["usage"]["prompt_tokens_details"] = {"cached_tokens": behaviour.cached}
    hits = [forward.accepted for forward in rounds]
    drafted, histogram = (
        sum(forward.drafted for forward in rounds),
        [hits.count(n) for n in range(DRAFT_LENGTH + 1)],
    )
    asks_sglang = "return_spec_tokens_details" in body
    if behaviour.counts and behaviour.speculates and behaviour.reports_drafts and not asks_sglang:
        # vLLM counts the rounds in which something was drafted.
        counts = {
            "num_spec_steps": len(rounds),
            "num_draft_tokens": drafted,
            "acceptance_histogram": histogram,
        }
        last["metrics"] = {"speculative_decoding": counts}
    if asks_sglang and behaviour.speculates:
        counts = {
            "spec_num_correct_drafts": sum(hits),
            "spec_num_proposed_drafts": drafted,
            "spec_verify_ct": verified,
        }
        last["sglext"] = {"spec_tokens_details": counts}
    moved = {"drafts": len(rounds), "draft_tokens": drafted, "accepted_tokens": sum(hits)}
    engine.counts.update(moved | {"accepted_tokens_per_pos": sum(map(bool, hits))})
    yield last


def llama_chunks(engine: StreamingEngine, body: Body) -> Iterator[Body]:
    total, drafted, accepted = 0, 0, 0
    for new, draft_length, hits, *_ in engine.decode(body["prompt"], body["n_predict"]):
        # llama.cpp counts the tokens of a verification that lie after the answer's end, and does not send them.
        total, drafted, accepted = total + hits + 1, drafted + draft_length, accepted + hits
        for token in new:  # llama.cpp sends the tokens of a verification one by one
            yield {"content": text_of([token]), "tokens": [token], "stop": False}
    timings = {"predicted_n": total, "cache_n": engine.behaviour.cached}
    if drafted:  # llama.cpp leaves the counts out where nothing was drafted
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    yield {
        "content": "",
        "tokens": [],
        "stop": True,
        "stop_type": "limit",
        "timings": timings,
        "tokens_evaluated": 9,
    }


def sglang_chunks(engine: StreamingEngine, body: Body) -> Iterator[Body]:
    tokens: list[int] = []
    sampling, rounds = body["sampling_params"], 0
    for new, _, _, is_last, _ in engine.decode(body["text"], sampling["max_new_tokens"]):
        rounds, tokens = rounds + bool(tokens), [*tokens, *new]
        meta = {"completion_tokens": len(tokens), "prompt_tokens": 9, "finish_reason": None}
        meta |= {"finish_reason": {"type": "length"}, "spec_verify_ct": rounds} if is_last else {}
        yield {"text": text_of(tokens), "output_ids": tokens, "meta_info": meta}


def tgi_chunks(engine: StreamingEngine, body: Body) -> Iterator[Body]:
    total, count = 0, body["parameters"]["max_new_tokens"]
    for new, *_ in engine.decode(body["inputs"], count):
        for token in new:
            total += 1
            details = (
                {"finish_reason": "length", "generated_tokens": total} if total == count else None
            )
            yield {
                "token": {"id": token, "text": text_of([token]), "special": False},
                "details": details,
            }


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


def handler_of(engine: StreamingEngine) -> type[BaseHTTPRequestHandler]:
    behaviour = engine.behaviour

    class StreamingHandler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = (
            True  # else each event waits 40 ms for the acknowledgement of the last one
        )
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/metrics":
                lines = [
                    f'vllm:spec_decode_num_{name}_total{{model_name="tiny",position="0"}} {count}'
                    for name, count in behaviour.miscount(dict(engine.counts)).items()
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
                if number == 3 and (
                    behaviour.breaks or len(engine.requests) in behaviour.breaks_at
                ):
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

        def log_message(self, *arguments: object) -> None:
            return

    return StreamingHandler


@contextmanager
def streaming_server(
    tls: tuple[Path, Path] | None = None, port: int = 0, **behaviour: Any
) -> Iterator[tuple[str, StreamingEngine]]:
    """A server in a thread: yields its HOST:PORT, and its engine; `tls` is a certificate with its key."""
    engine = StreamingEngine(Behaviour(**behaviour))
    server = ThreadingHTTPServer(("127.0.0.1", port), handler_of(engine))
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server) as port:
        yield f"127.0.0.1:{port}", engine


@contextmanager
def server_process(port: int = 0, **behaviour: object) -> Iterator[tuple[BaseProcess, int]]:
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
    server = ThreadingHTTPServer(
        ("127.0.0.1", port), handler_of(StreamingEngine(Behaviour(**behaviour)))
    )
    connection.send(server.server_port)
    server.serve_forever()
