"""A model of llama.cpp as the benchmarks use it: positions are appended and dropped, logits read from its memory."""

from collections.abc import Sequence
from importlib.util import find_spec
from logging import ERROR, getLogger
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Skipped


def require_llama_cpp() -> None:
    """Raise Skipped if llama-cpp-python or the package gguf is not installed."""
    missing = [package for package in ("llama_cpp", "gguf") if find_spec(package) is None]
    if missing:
        raise Skipped(
            f"{' and '.join(missing)} not installed: pip install 'specbench-kit[llama-cpp]'"
        )


def is_installed() -> bool:
    """Return whether llama-cpp-python is there, whose library its user may have built for this processor."""
    return find_spec("llama_cpp") is not None


def build() -> str:
    """Return for which of the instructions that matter to its products llama.cpp's library was built."""
    import llama_cpp

    told = llama_cpp.llama_print_system_info().decode()
    wanted = ("AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8")
    return ", ".join(name for name in wanted if f" {name} = 1 " in f" {told} ") or "no vectors"


def quantise(source: Path, path: Path, kind: str) -> None:
    """Write every matrix of a GGUF file in one type, by llama.cpp itself.

    Matrices whose rows are no multiple of the type's block are written in the type that llama.cpp falls back to.
    """
    import llama_cpp

    names = {"F32": "ALL_F32", "Q4_K": "MOSTLY_Q4_K_M", "Q5_K": "MOSTLY_Q5_K_M"}
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{names.get(kind, f'MOSTLY_{kind}')}")
    options.pure = True
    options.nthread = 1
    getLogger("llama-cpp-python").setLevel(ERROR)  # else it prints a line for every tensor
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), options):
        raise RuntimeError(f"llama.cpp cannot write {path.name} as {kind}")


class LlamaModel:
    """One sequence of a loaded GGUF file. `length` tokens are held, and every forward appends."""

    def __init__(
        self, path: Path, context: int, *, threads: int = 1, exact_cache: bool = False
    ) -> None:
        """Load a file; `exact_cache` keeps keys and values as f32 instead of f16."""
        import llama_cpp

        self._library = llama_cpp
        kind = llama_cpp.GGML_TYPE_F32 if exact_cache else llama_cpp.GGML_TYPE_F16
        self._model = llama_cpp.Llama(
            str(path),
            n_ctx=context,
            n_batch=context,
            n_threads=threads,
            n_threads_batch=threads,
            type_k=kind,
            type_v=kind,
            verbose=False,
        )
        self._batch = llama_cpp.llama_batch_init(context, 0, 1)
        self.vocabulary = int(self._model.n_vocab())
        self.length = 0

    def forward(self, tokens: Sequence[int], keep: int = 1) -> NDArray[np.float32]:
        """Append tokens and return the logits [keep, vocabulary] of the last of them, valid until the next forward."""
        batch, count = self._batch, len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, self.length + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index >= count - keep
        batch.n_tokens = count
        if self._library.llama_decode(self._model.ctx, batch):
            raise RuntimeError("llama.cpp could not decode the batch")
        self.length += count
        return np.ctypeslib.as_array(
            self._library.llama_get_logits(self._model.ctx), shape=(keep, self.vocabulary)
        )

    def rewind(self, length: int = 0) -> None:
        """Drop all tokens after the first `length`."""
        memory = self._library.llama_get_memory(self._model.ctx)
        self._library.llama_memory_seq_rm(memory, 0, length, -1)
        self.length = length

    def decode(self, prompt: Sequence[int], limit: int, eos_ids: frozenset[int]) -> list[int]:
        """Return the greedy answer to a prompt."""
        self.rewind()
        output = [int(self.forward(prompt)[-1].argmax())]
        while output[-1] not in eos_ids and len(output) < limit:
            output.append(int(self.forward(output[-1:])[-1].argmax()))
        return output

    def decode_with(
        self,
        draft: "LlamaModel",
        prompt: Sequence[int],
        limit: int,
        eos_ids: frozenset[int],
        drafted: int,
    ) -> list[int]:
        """Return the greedy answer, whose tokens a smaller model drafts so many at a time."""
        self.rewind()
        draft.rewind()
        text = [*prompt, int(self.forward(prompt)[-1].argmax())]
        while text[-1] not in eos_ids and len(text) < len(prompt) + limit:
            tokens = [int(draft.forward(text[draft.length :])[-1].argmax())]
            while len(tokens) < drafted:
                tokens.append(int(draft.forward(tokens[-1:])[-1].argmax()))
            rows = self.forward([text[-1], *tokens], keep=1 + drafted)
            said = rows.argmax(axis=1).tolist()
            accepted = 0
            while accepted < drafted and said[accepted] == tokens[accepted]:
                accepted += 1
            # What was accepted stays in both caches, and the target's own next token in neither.
            kept = len(text) + accepted
            self.rewind(kept)
            draft.rewind(min(kept, draft.length))
            for token in said[: accepted + 1]:
                text.append(token)
                if token in eos_ids or len(text) == len(prompt) + limit:
                    return text[len(prompt) :]
        return text[len(prompt) :]
