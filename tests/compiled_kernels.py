"""Compile the Triton kernels for a card, such as 90 for an H100, and print the size of each one's code."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specbench_kit.models.executors.kernels import by_triton

NUMBERS = {"width": "i32", "heads": "i32", "kv_heads": "i32", "dim": "i32", "epsilon": "fp32"}
INDICES = {"slots": "*i64", "cells": "*i64"}
"""The types of arguments by name; strides are i32, and all others are tensors in bf16."""


def compiled(kernel: Any, capability: int, warps: int, **constants: int | None) -> int:
    """Return the size of a kernel's code with some arguments fixed."""
    signature = {
        name: "constexpr" if name in constants else type_of(name) for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    target = GPUTarget("cuda", capability, 32)
    return len(triton.compile(source, target=target, options=options).asm["cubin"])


def type_of(name: str) -> str:
    if name.endswith("_stride"):
        return "i32"
    return {**NUMBERS, **INDICES}.get(name, "*bf16")


def main(capability: int) -> None:
    store: dict[str, None] = dict.fromkeys(("keys", "values", "slots", "cells"))
    for absent in ({}, {"added": None, "total": None}):
        print("norm", compiled(by_triton._norm_kernel, capability, 16, BLOCK=4096, **absent))
    for absent in ({}, {"norms": None}, store, {"norms": None, **store}):
        size = compiled(by_triton._rotate_kernel, capability, 4, HEADS=8, BLOCK=64, **absent)
        print("rotate", size)
    print("gate", compiled(by_triton._gate_kernel, capability, 4, BLOCK=1024))


if __name__ == "__main__":
    main(int(sys.argv[1]))
