"""The compiled part of the native executor: which build this processor can run, and its
functions.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import c_float, c_int32, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Protocol

import torch

from specbench_kit.models.executors.base import Row

BUILDS = {"avx512": "AVX512", "avx2": "AVX2", "portable": ""}
"""The builds, fastest first, with the CPU capability, as torch names it, that each needs."""
LEVELS = ("", "AVX2", "AVX512")
NARROW_BUILD = "narrow"
"""The build of `native-bf16`, `native-int8` and GGUF files for processors with AVX512-BF16 and
AVX512-VNNI, and perhaps AMX.
"""


class Shape(ctypes.Structure):
    """The structure `Shape` of model.h."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner")
        ),
        *(
            (name, c_int32)
            for name in (
                "vocabulary",
                "positions",
                "slots",
                "capacity",
                "outputs",
                "reads",
                "fused",
            )
        ),
        ("eps", c_float),
    ]


class LayerWeights(ctypes.Structure):
    """The structure `LayerWeights` of model.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "out", "gate_up", "down")),
        *(
            (name, c_void_p)
            for name in ("input_norm", "post_norm", "qkv_bias", "query_norm", "key_norm")
        ),
        ("state_norm", c_void_p),
    ]


class Logits(Protocol):
    """The type `Logits` of native.cpp, which is also a buffer of floats."""

    def describe(self, temperature: float, /) -> list[list[float]]:
        """Return max probability, entropy, margin and standard deviation of every row."""

    def candidates(
        self,
        temperature: float,
        rows: Sequence[int],
        bases: Sequence[float],
        branch: int,
        count: int,
        floor: float,
        /,
    ) -> list[tuple[float, int, int]]:
        """Return the best candidates as (score, row, token): see `DraftForward.likeliest`."""


class Library(Protocol):
    """The functions of native.cpp; `Any` is a decoder. Bad input is a ValueError that says what was
    asked for.
    """

    def make(self, shape: Shape, kind: int, norm: int | None, cosines: int, sines: int, /) -> Any:
        """Return a decoder whose matrices are still to be loaded; `kind` is explained in
        native.cpp.
        """

    def load_layer(self, decoder: Any, index: int, weights: LayerWeights, /) -> None:
        """Copy the weights of one layer."""

    def load_both_ends(self, decoder: Any, head: int, embedding: int | None, /) -> None:
        """Copy the output matrix and the embeddings, which are the rows of that matrix if they are
        None.
        """

    def load_fusion(self, decoder: Any, rows: int, bias: int | None, /) -> None:
        """Copy the matrix that makes a head's states of the target's."""

    def fuse(self, decoder: Any, states: int, count: int, to: int, threads: int, /) -> None:
        """Write the head's states of the target's: addresses of [count, width] in fp32."""

    def share_weights(self, decoder: Any, slots: int, capacity: int, /) -> Any:
        """Return another decoder over the same weights, with KV of its own."""

    def forward(
        self,
        decoder: Any,
        rows: Sequence[Row],
        threads: int,
        vocabulary: int,
        computed: int,
        layers: Sequence[int],
        hidden: int | None,
        states: int | None,
        new_states: int | None,
        /,
    ) -> tuple[Logits, list[int]]:
        """Return the logits and the likeliest token of each of their rows, -1 for a row with NaN.

        Only the first `computed` logits of a vocabulary are computed; no other token is likely.
        """

    def move(self, decoder: Any, slot: int, places: Sequence[int], to: int, /) -> None:
        """Move the KV at `places`, in rising order, to `to` and the places after it."""


class NarrowLibrary(Library, Protocol):
    """The functions of the build for products of numbers narrower than fp32."""

    def products(self, name: str | None, /) -> str:
        """Return how later models compute products, after choosing `name` unless it is None; "" if
        they cannot.
        """


@cache
def load_library() -> Library | None:
    """Return the fastest build that was compiled at installation and that this processor runs, or
    None.
    """
    builds = [build for build, needed in BUILDS.items() if LEVELS.index(needed) <= _level()]
    return next((module for build in builds for module in _find(build)), None)


@cache
def load_narrow_library() -> NarrowLibrary | None:
    """Return the build for narrow products, or None if it was not compiled or this processor cannot
    run it.
    """
    if _level() < LEVELS.index("AVX512"):
        return None
    return next((module for module in _find(NARROW_BUILD) if module.products(None)), None)


def byte_products() -> str:
    """Return the instructions that multiply blocks of bytes here; empty if only portable code
    does.
    """
    narrow = load_narrow_library()
    if narrow is not None:
        return "AVX512-VNNI and AMX" if narrow.products(None) == "AMX" else "AVX512-VNNI"
    return "AVX2" if load_library() is not None and _level() >= LEVELS.index("AVX2") else ""


def _level() -> int:
    return {"AVX2": 1, "AVX512": 2}.get(torch.backends.cpu.get_cpu_capability().split("_")[0], 0)


def _find(build: str) -> Iterator[Any]:
    for suffix in EXTENSION_SUFFIXES:
        with suppress(ImportError):  # missing, or left over from another version of Python
            module = _load(_place(build, suffix))
            if hasattr(module, "fuse"):  # else left over from an earlier version of the kit
                yield module


def _place(build: str, suffix: str) -> Path:
    return Path(__file__).with_name("csrc") / f"{build}{suffix}"


@cache
def _load(file: Path) -> Any:
    """Import a build, once; each is the module `native`, whatever its file is called.

    Python would put what a file holds that it loads a second time into the module of that name that
    was loaded last.
    """
    spec = spec_from_file_location("native", file, loader=ExtensionFileLoader("native", str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
