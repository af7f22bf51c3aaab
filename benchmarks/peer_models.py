"""One loaded model behind one interface, in the kit, llama.cpp and transformers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import AUTOREGRESSIVE
from benchmarks.llama_library import LlamaModel, quantise
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import Executor, executors, make_executor
from specbench_kit.models.pair import SLACK, Pair
from specbench_kit.models.runner import Append, Runner

QUANTISED = ("Q8_0", "Q4_1")
"""The types of llama.cpp's files beside BF16."""


class Peer(ABC):
    """Decodes greedily; after `prefill`, verifies drafts at the end of the context without keeping them."""

    @abstractmethod
    def decode(self, request: Request) -> list[int]:
        """Return the answer to a request."""

    @abstractmethod
    def prefill(self, context: Sequence[int]) -> None:
        """Replace all held tokens by a context."""

    @abstractmethod
    def verify(self, draft: Sequence[int]) -> list[int]:
        """Return the likeliest token after every token of a draft that follows the context."""


class Kit(Peer):
    """The kit's loop and one of its executors."""

    def __init__(self, executor: Executor, eos_ids: frozenset[int]) -> None:
        self._runner, self._eos_ids = Runner(executor), eos_ids
        self._slot: int | None = None

    def decode(self, request: Request) -> list[int]:
        self._release()
        setup = DecodingSetup(eos_ids=self._eos_ids)
        loop = local_loop(parse_method(AUTOREGRESSIVE), self._runner, setup=setup)
        loop.submit(request)
        records = []
        while not loop.idle:
            records += loop.step()
        return list(records[0].output_ids)

    def prefill(self, context: Sequence[int]) -> None:
        self._release()
        self._slot = self._runner.acquire()
        self._runner.forward([Append(self._slot, context)]).argmax()
        self._runner.commit(self._slot, range(len(context)))

    def verify(self, draft: Sequence[int]) -> list[int]:
        assert self._slot is not None
        best = self._runner.forward([Append(self._slot, draft, keep=len(draft))]).argmax()[0]
        self._runner.commit(self._slot, [])
        return best

    def _release(self) -> None:
        if self._slot is not None:
            self._runner.release(self._slot)
            self._slot = None


class LlamaCpp(Peer):
    """A GGUF file in llama.cpp."""

    def __init__(self, path: Path, capacity: int, eos_ids: frozenset[int]) -> None:
        self._model, self._eos_ids = LlamaModel(path, capacity), eos_ids
        self._context = 0

    def decode(self, request: Request) -> list[int]:
        return self._model.decode(request.prompt_ids, request.max_new_tokens, self._eos_ids)

    def prefill(self, context: Sequence[int]) -> None:
        self._model.rewind()
        self._model.forward(context).argmax()
        self._context = len(context)

    def verify(self, draft: Sequence[int]) -> list[int]:
        best: list[int] = self._model.forward(draft, keep=len(draft)).argmax(-1).tolist()
        self._model.rewind(self._context)
        return best


class Transformers(Peer):
    """`generate` of transformers, and its forward over a cache that is cropped."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: Any = None

    def decode(self, request: Request) -> list[int]:
        ids = torch.tensor([request.prompt_ids])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": request.max_new_tokens}
        with torch.inference_mode():
            output = self._model.generate(ids, do_sample=False, **options)
        new: list[int] = output[0, ids.shape[1] :].tolist()
        return new

    def prefill(self, context: Sequence[int]) -> None:
        with torch.inference_mode():
            result = self._model(torch.tensor([context]), use_cache=True, logits_to_keep=1)
        result.logits.argmax(-1)
        self._cache = result.past_key_values

    def verify(self, draft: Sequence[int]) -> list[int]:
        with torch.inference_mode():
            logits = self._model(
                torch.tensor([draft]), past_key_values=self._cache, use_cache=True
            ).logits
        self._cache.crop(-len(draft))
        best: list[int] = logits[0].argmax(-1).tolist()
        return best


def all_peers(pair: Pair, capacity: int, folder: Path) -> dict[str, Peer]:
    """Return every native executor of the kit that can run the model, llama.cpp's files and transformers."""
    models = {
        "float32": pair.target.model,
        "bfloat16": deepcopy(pair.target.model).to(torch.bfloat16),
    }
    return {
        **_kit(pair, models.values(), capacity),
        **_llama_cpp(pair, capacity, folder),
        **{f"transformers, {name}": Transformers(model) for name, model in models.items()},
    }


def _kit(pair: Pair, models: Iterable[Any], capacity: int) -> dict[str, Peer]:
    """Return the native executors; those with narrow products take the model in bf16 alone."""
    peers: dict[str, Peer] = {}
    for name, kind in sorted(executors.all().items()):
        able = [model for model in models if kind.supports(model)]
        if name.startswith("native") and able and not kind.missing():
            peers[f"kit, {name}"] = Kit(
                make_executor(able[0], 1, capacity + SLACK, pair.vocabulary, name), pair.eos_ids
            )
    return peers


def _llama_cpp(pair: Pair, capacity: int, folder: Path) -> dict[str, Peer]:
    from benchmarks import gguf_file

    paths = {kind: folder / f"{kind}.gguf" for kind in ("F32", "BF16", *QUANTISED)}
    for kind in ("F32", "BF16"):
        gguf_file.write(pair.target, pair.tokenizer, paths[kind], kind)
    for kind in QUANTISED:
        quantise(paths["F32"], paths[kind], kind)
    kinds = ("BF16", *QUANTISED)
    return {f"llama.cpp, {kind}": LlamaCpp(paths[kind], capacity, pair.eos_ids) for kind in kinds}
