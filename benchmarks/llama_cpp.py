"""The practical ceiling: llama.cpp on the same weights, prompts and threads. Optional: it needs llama-cpp-python."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.common import (
    AUTOREGRESSIVE,
    FIXED_K,
    Figure,
    Outcome,
    Runners,
    Seconds,
    Setting,
    over_rounds,
    take_turns,
)
from benchmarks.llama_library import LlamaModel, require_llama_cpp
from specbench_kit.decoding.session import Request

Role = Literal["target", "draft"]
Decode = Callable[[Request], list[int]]

THREADS = (1, 2)
DRAFTS = 4


def run(setting: Setting) -> Outcome:
    """Measure milliseconds per token of whole requests, prefill included."""
    require_llama_cpp()
    threads = torch.get_num_threads()
    with TemporaryDirectory() as folder:
        contenders = _kit(setting) | _llama_cpp(setting, Path(folder))
        outputs = {
            name: [decode(request) for request in setting.requests]
            for name, decode in contenders.items()
        }
        seconds = take_turns(contenders, setting.requests, setting.rounds)
    torch.set_num_threads(threads)
    return Outcome("Beside llama.cpp", [*_agreements(outputs), *_speeds(outputs, seconds)])


def _agreements(outputs: dict[str, list[list[int]]]) -> list[Figure]:
    """Return the share of requests with the same output from llama.cpp and from the kit."""
    figures = []
    for role in ("target", "draft"):
        expected = outputs[_label(role, AUTOREGRESSIVE, 1)]
        for weights in ("f32", "f16"):
            answers = outputs[_label(role, f"llama.cpp {weights}", 1)]
            equal = [a == b for a, b in zip(answers, expected, strict=True)]
            figures.append(
                Figure(
                    f"{role}, outputs equal to the kit's: llama.cpp {weights}",
                    100 * sum(equal) / len(equal),
                    "%",
                )
            )
    return figures


def _speeds(outputs: dict[str, list[list[int]]], seconds: Seconds) -> list[Figure]:
    tokens = {name: sum(map(len, answers)) for name, answers in outputs.items()}
    return [
        over_rounds(name, [1000 * sum(row) / tokens[name] for row in seconds[name]], "ms/token")
        for name in sorted(seconds, key=lambda name: (name.startswith("draft"), name))
    ]


def _label(role: str, what: str, threads: int) -> str:
    return f"{role}, {threads} thread{'s' * (threads > 1)}: {what}"


def _kit(setting: Setting) -> dict[str, Decode]:
    target, draft = setting.runners(setting.executor_names[0])

    def decode(runners: Runners, method: str, threads: int) -> Decode:
        def decode_one(request: Request) -> list[int]:
            torch.set_num_threads(threads)
            return setting.decode(runners, method, [request])[0][0].output_ids

        return decode_one

    cases: list[tuple[Role, Runners, str]] = [
        ("target", (target, draft), AUTOREGRESSIVE),
        ("target", (target, draft), FIXED_K),
        ("draft", (draft, draft), AUTOREGRESSIVE),
    ]
    return {
        _label(role, m, n): decode(runners, m, n) for role, runners, m in cases for n in THREADS
    }


def _llama_cpp(setting: Setting, folder: Path) -> dict[str, Decode]:
    from benchmarks import gguf_file

    contenders: dict[str, Decode] = {}
    for role, loaded in (("target", setting.pair.target), ("draft", setting.pair.needed_draft)):
        for weights in ("f32", "f16"):
            path = folder / f"{role}-{weights}.gguf"
            gguf_file.write(loaded, setting.pair.tokenizer, path, kind=weights.upper())
            for threads in THREADS:
                decode = _decoder(setting, path, weights, threads)
                contenders[_label(role, f"llama.cpp {weights}", threads)] = decode
    for threads in THREADS:
        target, draft = (folder / f"{role}-f16.gguf" for role in ("target", "draft"))
        contenders[_label("target", "llama.cpp f16, drafts of 4", threads)] = _speculating(
            setting, target, draft, threads
        )
    return contenders


def _speculating(setting: Setting, target: Path, draft: Path, threads: int) -> Decode:
    """Return greedy decoding with the package's own speculative loop and the pair's draft model."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaDraftModel

    options = {
        "n_ctx": _context(setting),
        "n_threads": threads,
        "n_threads_batch": threads,
        "verbose": False,
    }
    small = llama_cpp.Llama(str(draft), **options)

    class Drafter(LlamaDraftModel):
        def __call__(self, input_ids: Any, /, **_options: Any) -> Any:
            return np.fromiter(
                islice(small.generate(input_ids.tolist(), temp=0.0), DRAFTS), dtype=np.intc
            )

    model = llama_cpp.Llama(str(target), logits_all=True, draft_model=Drafter(), **options)

    def decode(request: Request) -> list[int]:
        output: list[int] = []
        for token in model.generate(request.prompt_ids, temp=0.0):
            output.append(token)
            if token in setting.pair.eos_ids or len(output) == request.max_new_tokens:
                break
        return output

    return decode


def _decoder(setting: Setting, path: Path, weights: str, threads: int) -> Decode:
    """Return greedy decoding that reads the logits in llama.cpp's own memory."""
    model = LlamaModel(path, _context(setting), threads=threads, exact_cache=weights == "f32")
    return lambda request: model.decode(
        request.prompt_ids, request.max_new_tokens, setting.pair.eos_ids
    )


def _context(setting: Setting) -> int:
    return (
        max(len(request.prompt_ids) for request in setting.requests)
        + setting.max_new_tokens
        + DRAFTS
    )
