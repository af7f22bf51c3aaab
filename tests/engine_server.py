"""A small HTTP server around a model that speaks the wire formats of other engines."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zlib import crc32

import torch
from http_servers import running
from live_server import TARGET
from tiny_models import plain_logits

from specbench_kit.decoding.sampling import RequestRandom, Sampler, draw

Body = dict[str, Any]
HELD_BACK = 3
"""The token of a llama.cpp stream that ends within a character: it is counted, and not sent."""


@dataclass
class Faults:
    """The ways in which this engine differs from one that always computes the same."""

    rounding: float = 0.0
    """How far each shape of forward moves each logit at most."""
    wrong: bool = False
    """Verifies every second draft by the least likely token."""
    gone: bool = False
    """Ends the connection where it is asked for log-probabilities."""


FAULTS = Faults()


def logits_of(tokens: list[int], shape: str) -> torch.Tensor:
    """The logits after each token, rounded in a way of their own in each shape of forward."""
    logits = plain_logits(TARGET, tokens)
    if FAULTS.rounding:
        random = torch.Generator().manual_seed(crc32(f"{shape} {tokens}".encode()))
        logits = logits + FAULTS.rounding * (2 * torch.rand(logits.shape, generator=random) - 1)
    return logits


def best(tokens: list[int], shape: str = "scored") -> list[tuple[int, float]]:
    """The likeliest token after each token, with its log-probability."""
    values, token_ids = logits_of(tokens, shape).log_softmax(-1).max(-1)
    return list(zip(token_ids.tolist(), values.tolist(), strict=True))


def scores(tokens: list[int], shape: str = "scored") -> list[list[float]]:
    """The log-probability of every token of the vocabulary after each token."""
    values: list[list[float]] = logits_of(tokens, shape).log_softmax(-1).tolist()
    return values


def verified(tokens: list[int], after: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the scored tokens that a draft is verified by; a wrong server's last one is its least likely."""
    if not FAULTS.wrong or len(tokens) % 2:
        return after
    worst = min(enumerate(scores(tokens)[-1]), key=lambda entry: entry[1])
    return [*after[:-1], worst]


def likeliest(row: list[float], count: int) -> list[tuple[int, float]]:
    return sorted(enumerate(row), key=lambda entry: -entry[1])[:count]


V2_RUNNER: Body = {"cached": None, "begun": 0}
"""Of a vLLM with its model runner V2: the tokens that its prefix cache has of any prompt, None for an older runner.

It counts the prompts that were scored from behind the cache.
"""


def vllm(body: Body) -> Body | None:
    tokens, sampling = body["token_ids"], body["sampling_params"]
    if "prompt_logprob_token_ids" in sampling and V2_RUNNER["cached"] is None:
        return None
    after, count = verified(tokens, best(tokens)), sampling.get("prompt_logprobs", 0)
    rows: list[Body | None] = [None]
    for row, own in zip(scores(tokens), tokens[1:], strict=False):
        entries = {str(own): {"logprob": row[own], "rank": 9}}
        entries |= {
            str(token): {"logprob": score, "rank": 1} for token, score in likeliest(row, count)
        }
        rows.append(entries)
    if sampling.get("skip_reading_prefix_cache") is False:
        V2_RUNNER["begun"] += 1
        rows = [None, *rows[1 + V2_RUNNER["cached"] :]]
    return {
        "choices": [{"index": 0, "token_ids": [after[-1][0]], "finish_reason": "length"}],
        "prompt_logprobs": rows if "prompt_logprobs" in sampling else None,
    }


def sglang(body: Body) -> Body:
    after, start = verified(body["input_ids"], best(body["input_ids"])), body["logprob_start_len"]
    rows = [None, *([[score, token, None]] for token, score in after[start:-1])]
    tokens, all_scores = body["input_ids"], scores(body["input_ids"], f"from {start}")
    own = [
        [all_scores[at - 1][tokens[at]] if at else None, tokens[at], None]
        for at in range(start, len(tokens))
    ]
    top = [
        [value, token, None] for token, value in likeliest(all_scores[-1], body["top_logprobs_num"])
    ]
    meta = {"input_top_logprobs": rows, "input_token_logprobs": own, "output_top_logprobs": [top]}
    return {"text": "", "output_ids": [after[-1][0]], "meta_info": meta}


def one_token(tokens: list[int], body: Body, shape: str = "prefix") -> int:
    """Draw one token by the server's own sampler."""
    sampler = Sampler(body["temperature"], body.get("top_p", 1.0), max(0, body.get("top_k", 0)))
    logits = logits_of(tokens, shape)[-1:]
    if sampler.greedy:
        return (
            verified(tokens, [(int(logits.argmax()), 0.0)])[0][0]
            if shape == "prefix"
            else int(logits.argmax())
        )
    return draw(sampler.probabilities(logits), [RequestRandom(body["seed"], "").uniform("target")])[
        0
    ]


def completions(body: Body) -> Body:
    token_ids = [one_token(tokens, body) for tokens in body["prompt"]]
    return {
        "choices": [
            {"index": i, "text": "", "token_ids": [token]} for i, token in enumerate(token_ids)
        ]
    }


LLAMA_CPP_DEFAULTS: Body = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "ignore_eos": False,
    "logit_bias": [],
    "grammar": "",
    "samplers": [
        "penalties",
        "dry",
        "top_n_sigma",
        "top_k",
        "typ_p",
        "top_p",
        "min_p",
        "xtc",
        "temperature",
    ],
    "seed": 4294967295,
}
"""What llama-server samples with where a request says nothing; its own options change this."""


def llama_cpp(body: Body, defaults: Body = LLAMA_CPP_DEFAULTS) -> list[Body] | Body:
    used = {name: body.get(name, default) for name, default in defaults.items()}
    used["grammar"] = (
        body.get("grammar") or defaults["grammar"]
    )  # an empty one does not replace the server's own
    rows = [
        {"index": i, "tokens": [one_token(tokens, used)], "generation_settings": used}
        for i, tokens in enumerate(body["prompt"])
    ]
    if body.get("n_probs"):
        row = scores(body["prompt"][0], f"cached {body['cache_prompt']}")[-1]
        entries = [
            {"id": token, "token": "", "logprob": value}
            for token, value in likeliest(row, body["n_probs"])
        ]
        rows[0]["completion_probabilities"] = [{**entries[0], "top_logprobs": entries}]
    return rows if len(rows) > 1 else rows[0]


def tokenize(body: Body) -> Body:
    return {"tokens": list(body["prompt"].encode())}


ROUTES = {
    "/tokenize": tokenize,
    "/inference/v1/generate": vllm,
    "/generate": sglang,
    "/v1/completions": completions,
    "/completion": llama_cpp,
}
MODELS = {
    "/v1/models": {"data": [{"id": "tiny", "max_model_len": 160}]},
    "/get_model_info": {"model_path": "tiny"},
    "/props": {"default_generation_settings": {"n_ctx": 160}},
}


def streamed(path: str, body: Body) -> Iterator[Body]:
    """The events of a response that the engine decodes by itself, in its own form."""
    sampling = body.get("sampling_params", body)
    tokens = list(body["input_ids"] if path == "/generate" else body["prompt"])
    count = sampling.get("max_new_tokens") or body.get("max_tokens") or body.get("n_predict")
    answer: list[int] = []
    for number in range(1, count + 1):
        is_held_back = path == "/completion" and number == HELD_BACK
        # The adapter asks for a token that was held back as it asks for the next token of any prefix.
        answer.append(
            one_token([*tokens, *answer], sampling, "prefix" if is_held_back else "streamed")
        )
        if is_held_back:
            continue
        if path == "/generate":
            yield {"text": "", "output_ids": answer, "meta_info": {"completion_tokens": number}}
        elif path == "/completion":
            yield {
                "index": 0,
                "content": "",
                "tokens": answer[-1:],
                "stop": False,
                "tokens_predicted": number,
            }
        else:
            yield {"choices": [{"index": 0, "text": "", "token_ids": answer[-1:]}]}
    if path == "/completion":
        yield {"index": 0, "content": "", "tokens": [], "stop": True, "tokens_predicted": count}
    elif path != "/generate":
        yield {"choices": [], "usage": {}}


def asks_for_log_probabilities(body: Body) -> bool:
    """Verification asks for one likeliest token at most."""
    sampling = body.get("sampling_params", {})
    counts = body.get("n_probs"), body.get("top_logprobs_num"), sampling.get("prompt_logprobs")
    return any((count or 0) > 1 for count in counts)


class Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = (
        True  # else each event waits 40 ms for the acknowledgement of the last one
    )
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(MODELS.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("stream"):
            self.stream(body)
            return
        if FAULTS.gone and asks_for_log_probabilities(body):
            self.close_connection = True
            return
        with torch.inference_mode():
            self.answer(ROUTES[self.path](body) if self.path in ROUTES else None)

    def stream(self, body: Body) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        with torch.inference_mode(), suppress(BrokenPipeError, ConnectionResetError):
            for event in streamed(self.path, body):
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, content: object) -> None:
        payload = json.dumps(content).encode()
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *arguments: object) -> None:
        return


@contextmanager
def engine_server() -> Iterator[str]:
    """Yields its address."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}"
