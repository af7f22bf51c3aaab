"""Compile the Triton kernels for a card, such as 90 for an H100, and print the size of each one's code."""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specbench_kit.models.executors.kernels import by_triton, triton_attention, triton_logits

WHOLE = (
    "width",
    "heads",
    "kv_heads",
    "dim",
    "count",
    "length",
    "parts",
    "node_count",
    "trash",
    "vocabulary",
    "chunks",
)
TYPES = {
    **dict.fromkeys(WHOLE, "i32"),
    **dict.fromkeys(("epsilon", "scale", "factor"), "fp32"),
    **dict.fromkeys(("slots", "cells", "last", "prefixes", "tokens", "best"), "*i64"),
    "nodes": "*u8",
    "weights": "*fp32",
    "fields": "*fp64",
}
"""The types of arguments by name; strides are i32, and all others are tensors in bf16."""


def compiled(
    kernel: Any, capability: int, warps: int, *, in_fp32: str = "", **constants: int | None
) -> int:
    """Return the size of a kernel's code with some arguments fixed, and one tensor in fp32."""
    signature = {
        name: "constexpr" if name in constants else type_of(name) for name in kernel.arg_names
    }
    if in_fp32:
        signature[in_fp32] = "*fp32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    target = GPUTarget("cuda", capability, 32)
    return len(triton.compile(source, target=target, options=options).asm["cubin"])


def type_of(name: str) -> str:
    return "i32" if name.endswith("stride") else TYPES.get(name, "*bf16")


def main(capability: int) -> None:
    store: dict[str, None] = dict.fromkeys(("keys", "values", "slots", "cells"))
    for absent in ({}, {"added": None, "total": None}):
        print("norm", compiled(by_triton._norm_kernel, capability, 16, BLOCK=4096, **absent))
    for absent in ({}, {"norms": None}, store, {"norms": None, **store}):
        size = compiled(by_triton._rotate_kernel, capability, 4, HEADS=8, BLOCK=64, **absent)
        print("rotate", size)
    print("gate", compiled(by_triton._gate_kernel, capability, 4, BLOCK=1024))
    attention, sizes = (
        triton_attention._attention_kernel,
        {"PART": 256, "WIDTH": 32, "KEYS": 64, "BLOCK": 128},
    )
    chain: dict[str, None] = dict.fromkeys(("prefixes", "nodes"))
    for queries, warps in ((16, 4), (64, 8)):
        for absent in ({}, chain):
            given = {"QUERIES": queries, **sizes, **absent}
            size = compiled(attention, capability, warps, weights=None, **given)
            print("attention", size)
            size = compiled(attention, capability, warps, in_fp32="found", **given)
            print("attention in parts", size)
    join = {"PART": 256, "WIDTH": 32, "JOINED": 16, "BLOCK": 128}
    size = compiled(triton_attention._join_kernel, capability, 1, in_fp32="found", **join)
    print("join of parts", size)
    chunk = {"CHUNK": triton_logits.CHUNK, "SUMMARY": triton_logits.SUMMARY}
    summary = triton_logits._summary_kernel
    print("summary", compiled(summary, capability, 4, in_fp32="found", **chunk))
    for statistics in (0, 1):
        given = {"STATISTICS": statistics, "BLOCK": 64, **chunk}
        size = compiled(triton_logits._join_kernel, capability, 1, in_fp32="found", **given)
        print("join of summaries", size)


if __name__ == "__main__":
    main(int(sys.argv[1]))
