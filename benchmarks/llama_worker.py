"""llama.cpp's library in a process of its own: threads of two libraries in one process wait for each other, which would
make the peer slower than anybody finds it.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

from benchmarks.llama_library import LlamaModel

Milliseconds = dict[int, list[float]]
"""Times of forwards by their number of new tokens; under 0 those of a prompt."""


class LlamaWorker:
    """A target and a draft model of llama.cpp that answer, and time forwards by their own clock."""

    def __init__(self, target: Path, draft: Path, capacity: int, threads: int) -> None:
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=get_context("spawn"),
            initializer=_load,
            initargs=(target, draft, capacity, threads),
        )

    def answer(
        self, prompt: Sequence[int], limit: int, eos_ids: frozenset[int], drafted: int = 0
    ) -> int:
        """Answer greedily, with so many drafted tokens a round, and return the number of tokens."""
        return self._pool.submit(_answer, list(prompt), limit, eos_ids, drafted).result()

    def forwards(
        self, context: Sequence[int], text: Sequence[int], widths: Sequence[int], repeats: int
    ) -> Milliseconds:
        """Return the times of a prompt, and of forwards of the first tokens of a text behind it."""
        return self._pool.submit(
            _forwards, list(context), list(text), tuple(widths), repeats
        ).result()


_models: list[LlamaModel] = []


def _load(target: Path, draft: Path, capacity: int, threads: int) -> None:
    _models.extend(LlamaModel(path, capacity, threads=threads) for path in (target, draft))


def _answer(prompt: list[int], limit: int, eos_ids: frozenset[int], drafted: int) -> int:
    target, draft = _models
    if drafted:
        return len(target.decode_with(draft, prompt, limit, eos_ids, drafted))
    return len(target.decode(prompt, limit, eos_ids))


def _forwards(
    context: list[int], text: list[int], widths: tuple[int, ...], repeats: int
) -> Milliseconds:
    target, _ = _models
    times: Milliseconds = {0: [], **{width: [] for width in widths}}
    for _ in range(repeats):
        target.rewind()
        times[0].append(_ms(target, context, 1))
        for width in widths:
            times[width].append(_ms(target, text[:width], width))
            target.rewind(len(context))
    return times


def _ms(model: LlamaModel, tokens: Sequence[int], keep: int) -> float:
    started_s = perf_counter()
    model.forward(tokens, keep)
    return 1000 * (perf_counter() - started_s)
