"""The compiled part of the native executor: which build this processor can run, and its functions."""

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, c_float, c_int, c_int32, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

BUILDS = {"avx512": "AVX512", "avx2": "AVX2", "portable": ""}
"""Builds from the fastest on, and the least of torch's capabilities that a processor needs for each."""
LEVELS = ("", "AVX2", "AVX512")


class Shape(ctypes.Structure):
    """`Shape` of model.h."""

    _fields_ = [
        *((name, c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner")),
        *((name, c_int32) for name in ("vocabulary", "positions", "slots", "capacity", "outputs", "reads")),
        ("eps", c_float),
    ]


class LayerWeights(ctypes.Structure):
    """`LayerWeights` of model.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("input_norm", "post_norm", "qkv_bias", "query_norm", "key_norm")),
        ("state_norm", c_void_p),
    ]


class Batch(ctypes.Structure):
    """`Batch` of model.h."""

    _fields_ = [
        *((name, c_int32) for name in ("tokens", "kept", "hidden_layers", "threads", "vocabulary")),
        *((name, c_void_p) for name in ("token", "position", "slot", "place", "prefix")),
        *((name, c_void_p) for name in ("extra_offset", "extra", "kept_token", "hidden_layer")),
        *((name, c_void_p) for name in ("logits", "hidden", "best", "states", "new_states")),
    ]


@cache
def load_library() -> ctypes.CDLL | None:
    """The fastest build that was made when the kit was installed and that this processor runs; None without any."""
    path = next(_able(), None)
    return None if path is None else _declare(ctypes.CDLL(str(path)))


def _able() -> Iterator[Path]:
    level = {"AVX2": 1, "AVX512": 2}.get(torch.backends.cpu.get_cpu_capability().split("_")[0], 0)
    for build, needed in BUILDS.items():
        if LEVELS.index(needed) <= level:
            yield from (file for suffix in EXTENSION_SUFFIXES if (file := _place(build, suffix)).exists())


def _place(build: str, suffix: str) -> Path:
    return Path(__file__).with_name("csrc") / f"{build}{suffix}"


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    library.skit_padded.argtypes = [c_int]
    library.skit_describe.argtypes = [c_void_p, c_int, c_int, c_int, c_float, c_void_p]
    library.skit_describe.restype = None
    rows_asked_for = (c_void_p, c_void_p, c_int, c_int, c_int)
    library.skit_candidates.argtypes = [c_void_p, c_int, c_int, c_float, *rows_asked_for, c_void_p, c_void_p, c_void_p]
    library.skit_new.restype = c_void_p
    library.skit_new.argtypes = [POINTER(Shape), c_int, POINTER(LayerWeights), *[c_void_p] * 5]
    library.skit_beside.argtypes, library.skit_beside.restype = [c_void_p, c_int, c_int], c_void_p
    library.skit_delete.argtypes, library.skit_delete.restype = [c_void_p], None
    library.skit_forward.argtypes = [c_void_p, POINTER(Batch)]
    library.skit_move.argtypes = [c_void_p, c_int, c_int, c_void_p, c_int]
    return library
