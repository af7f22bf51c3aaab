"""llama.cpp itself, of the package `xllamacpp`: what it makes of a text, and which tokens it finds likely."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

CONTEXT = 512


class LlamaReference:
    """A server of llama.cpp with one GGUF file."""

    def __init__(self, url: str) -> None:
        self._url = url

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that the file puts around texts."""
        tokens: list[int] = self._post(
            "/tokenize", content=text, add_special=True, parse_special=True
        )["tokens"]
        return tokens

    def logarithms(self, tokens: Sequence[int], count: int) -> dict[int, float]:
        """Return the logarithms of the probabilities of the `count` likeliest tokens after some tokens."""
        answer = self._post(
            "/completion", prompt=list(tokens), n_predict=1, n_probs=count, temperature=0
        )
        return {
            row["id"]: row["logprob"]
            for row in answer["completion_probabilities"][0]["top_logprobs"]
        }

    def is_end(self, token: int) -> bool:
        """Return whether a token that the server is made to choose ends its answer."""
        answer = self._post(
            "/completion", prompt=[5], n_predict=4, logit_bias=[[token, 1e4]], temperature=0
        )
        return bool(answer["stop_type"] == "eos")

    def _post(self, path: str, **content: object) -> Any:
        request = Request(
            self._url + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=60) as response:
            return json.load(response)


@contextmanager
def llama_reference(path: Path) -> Iterator[LlamaReference]:
    """Serve a GGUF file with llama.cpp; skip the test where the package is not installed."""
    package = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed")
    options = package.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.port = str(path), CONTEXT, 1, 0
    options.warmup, options.verbosity = False, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.cache_type_k = options.cache_type_v = package.ggml_type.GGML_TYPE_F32
    server = package.Server(options)
    yield LlamaReference(server.listening_address)
    del server
