"""A server of llama.cpp on the files of a pair, from the package `xllamacpp`."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import Skipped
from specbench_kit.decoding.session import Request
from specbench_kit.models.pair import Pair
from specbench_kit.models.weights.blocks import blocks_of

DRAFTING = "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE"
MODES = {
    "plain": "",
    "the draft model": DRAFTING,
    "n-grams": "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",
}
"""The kinds of its speculation, by what this benchmark calls them."""


def require_server() -> None:
    """Raise Skipped if the package is missing."""
    if find_spec("xllamacpp") is None:
        raise Skipped("xllamacpp not installed: pip install --no-deps xllamacpp")


class LlamaServer:
    """A server in this process, without its HTTP, whose slots hold `capacity` tokens each."""

    def __init__(self, pair: Pair, capacity: int, speculation: str = "", slots: int = 1) -> None:
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path = str(target_file(pair))
        options.n_ctx, options.n_parallel = slots * capacity, slots
        threads = torch.get_num_threads()
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        if speculation:
            options.speculative.types = [getattr(xllamacpp.common_speculative_type, speculation)]
        if speculation == DRAFTING:
            draft = options.speculative.draft
            draft.mparams.path = str(draft_file(pair))
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(options)

    def complete(self, prompt: Sequence[int], limit: int) -> Mapping[str, Any]:
        """Return its answer to a prompt of token ids, as its API has it."""
        asked = {
            "prompt": list(prompt),
            "max_tokens": limit,
            "temperature": 0,
            "cache_prompt": False,
        }
        answer = self._server.handle_completions(asked)
        found: Mapping[str, Any] = answer if isinstance(answer, dict) else json.loads(answer)
        return found

    def answer(self, request: Request) -> int:
        """Answer a request and return the number of tokens."""
        return int(
            self.complete(request.prompt_ids, request.max_new_tokens)["usage"]["completion_tokens"]
        )

    def answer_all(self, requests: Sequence[Request]) -> int:
        """Answer some requests at the same time and return the number of tokens."""
        with ThreadPoolExecutor(len(requests)) as together:
            return sum(together.map(self.answer, requests))


def target_file(pair: Pair) -> Path:
    """Return the GGUF file of the target."""
    return _file(pair.target.shell)


def draft_file(pair: Pair) -> Path:
    """Return the GGUF file of the draft model."""
    return _file(pair.needed_draft.shell)


def _file(shell: Any) -> Path:
    blocks = blocks_of(next(iter(shell.parameters())))
    assert blocks is not None
    return Path(blocks.file)
