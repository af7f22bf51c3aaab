"""Measured kernels of GPUs, from the database of the package `aiconfigurator-core` (extra
`silicon`).

Those that come with the kit are stored in one TOML file per model, card, number of cards and
engine.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Written
from specbench_kit.decoding.kernel_latency import KernelTables
from specbench_kit.profilers import cards
from specbench_kit.profilers.architectures import Architecture
from specbench_kit.profilers.cards import Factor, Size, Text
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.roofline import Roofline

KernelEngine = Literal["vllm", "sglang", "trtllm"]
"""The serving engines whose kernels were measured."""
FOLDER = Path(__file__).with_name("kernels")
SPREAD: tuple[float, float] = (0.93, 1.1)
"""The factors on a step between which nine of ten steps of the same model under the other engines
lie.
"""


class MeasuredKernels(Struct, frozen=True, forbid_unknown_fields=True):
    """The kernels of a model on some cards under an engine, and where their times come from."""

    model: Text
    device: Text
    dtype: Text
    engine: KernelEngine
    source: Text
    kernels: KernelTables
    tensor_parallel: Size = 1
    spread: tuple[Factor, Factor] = SPREAD


def file_of(model: str, device: str, engine: KernelEngine, members: int) -> Path:
    """Return the file of a model's kernels, which need not be there."""
    together = f"-tp{members}" if members > 1 else ""
    return FOLDER / f"{model}-{device}-{engine}{together}.toml"


def find_kernels(
    model: str, device: str, engine: KernelEngine, members: int = 1
) -> MeasuredKernels | None:
    """Return the kernels of a model that come with the kit, or None."""
    path = file_of(model, device, engine, members)
    return _read(path) if path.is_file() else None


@cache
def _read(path: Path) -> MeasuredKernels:
    return cards.parse_table(MeasuredKernels, cards.read_toml(path), f"the measured kernels {path}")


PACKAGE = "aiconfigurator-core"
LICENCE = "Apache-2.0"
DTYPE = "bfloat16"
"""The package, its licence, and the dtype in which the kernels were measured."""
SYSTEMS = {
    "a100-80": "a100_sxm",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""The database's name of each device card."""
INTERCONNECTS = {"a100-80": "nvlink3", "h100": "nvlink4", "l40s": "pcie4", "rtx-pro-6000": "pcie5"}
"""The interconnect over which the reductions of several such cards were measured."""
ALIKE = {
    "a100-40": "nvlink3",
    "h20": "nvlink4",
    "h200": "nvlink4",
    "gh200": "nvlink4",
    "b200": "nvlink4",
    "b300": "nvlink4",
    "gb200": "nvlink4",
}
"""The interconnects of cards whose kernels were not measured over one, by those of their kin;
others have PCIe 4.
"""
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
_TOLD = frozenset(
    {
        "family",
        "hidden_size",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "intermediate_size",
        "vocabulary",
        "tied",
        "max_positions",
        "experts",
        "active_experts",
        "expert_size",
    }
)
"""The fields of a card that the package is told; a model with others has other kernels."""

# fmt: off
TOKENS = (
    1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 40, 48, 64, 80, 96, 128, 144, 160, 192, 256, 288, 384, 512, 576, 640,
    768, 1024, 1088, 1536, 2048, 3072, 4096, 8192,
)
# fmt: on
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (1, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TYPICAL_CONTEXT = 512
"""The cached tokens after which the least time of attention of several new tokens is looked up."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
PROMPTS = 8
"""Lengths and number of the prompts from which the price of attention is taken; of shorter ones
noise is left.
"""
Operations = Sequence[tuple[str, float, float, str]]
"""The package's operations: name, milliseconds, joules and origin."""


@dataclass(frozen=True, slots=True)
class KernelSeconds:
    """Seconds of a step's kernels by what they compute."""

    matrices_s: float
    output_s: float
    attention_s: float

    @property
    def total_s(self) -> float:
        """The seconds of all kernels."""
        return self.matrices_s + self.output_s + self.attention_s


class KernelDatabase:
    """The measured kernels of one model on `members` cards of one kind under one engine.

    None takes less than the card's data sheet allows: a few experts of a mixture, timed again and
    again, come from the card's cache, which they do not in a step.
    """

    def __init__(
        self, shapes: Architecture, device: str, engine: KernelEngine, members: int = 1
    ) -> None:
        from aiconfigurator_core.sdk import EngineHandle

        if (
            device not in SYSTEMS
            or shapes.family not in _CLASSES
            or shapes.describe().keys() - _TOLD
        ):
            raise SkitError(
                f"no kernels of such a model on {device} were measured: known are bfloat16 models of "
                f"{', '.join(_CLASSES)} on {', '.join(SYSTEMS)}; leave out --from silicon for an analytic model"
            )
        self._limit = Roofline(find_device(device).combined(members), shapes, DTYPE, members)
        with TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_config(shapes)), encoding="utf-8")
            mixture = {"moe_tp_size": members, "moe_ep_size": 1} if shapes.experts else {}
            try:
                self._handle = EngineHandle.compile(
                    folder, SYSTEMS[device], engine, tp_size=members, **mixture
                )
                self.step(1, 0, TYPICAL_CONTEXT)
            except (
                Exception
            ) as error:  # the package raises errors of many kinds, from its Rust core too
                reason = str(error).splitlines()[0][:200]
                raise SkitError(
                    f"{PACKAGE} has no kernels of this model on {device} under {engine}: {reason}"
                ) from error

    def step(self, requests: int, drafted: int, context: int) -> KernelSeconds:
        """Return a verification of `drafted` tokens for each request after `context` cached ones; 0
        is a plain step.

        A verification is the package's prefill after a prefix, with three corrections: its output
        layer, which the package computes for one token of a request, is looked up for all new ones;
        its attention takes at least that of a plain step, since the package reads long prefixes for
        next to nothing; and a plain step is its own.
        """
        decode = self._decode(requests, context)
        if not drafted:
            return decode
        new = drafted + 1
        prefill, _ = self._handle.run_static_per_op(
            batch_size=requests, isl=context + new, osl=2, prefix=context
        )
        attention_s = max(_seconds(prefill, _is_attention), decode.attention_s)
        return KernelSeconds(
            self._matrices_s(prefill, requests * new), self._output_s(requests * new), attention_s
        )

    def prompts(self, tokens: int, requests: int = 1) -> KernelSeconds:
        """Return the forward of prompts of so many tokens each."""
        prefill, _ = self._handle.run_static_per_op(batch_size=requests, isl=tokens, osl=2)
        matrices_s = self._matrices_s(prefill, requests * tokens)
        return KernelSeconds(matrices_s, self._output_s(requests), _seconds(prefill, _is_attention))

    def tables(self) -> KernelTables:
        """Return the times in the form that a profile holds.

        Matrices take what was measured, since other kernels may make more tokens faster. Attention
        has no such choice: where it falls with context or requests, a measurement was disturbed.
        """
        shortest_s = self.step(1, 1, TYPICAL_CONTEXT).attention_s
        lengths_s = [
            # Every token attends to itself and those before it, half of them on average.
            max(0.0, self.prompts(length, PROMPTS).attention_s - shortest_s)
            / (PROMPTS * (length + 1) / 2)
            for length in LENGTHS
        ]
        return KernelTables(
            tokens=TOKENS,
            tokens_s=_rounded(self.prompts(tokens).matrices_s for tokens in TOKENS),
            rows=TOKENS,
            rows_s=_rounded(self._output_s(rows) for rows in TOKENS),
            requests=REQUESTS,
            contexts=CONTEXTS,
            decode_s=tuple(
                map(_rounded, rising([self._decode_s(requests) for requests in REQUESTS]))
            ),
            lengths=LENGTHS,
            lengths_s=_rounded(lengths_s),
            attention_s=_rounded([shortest_s])[0],
        )

    def _decode_s(self, requests: int) -> list[float]:
        """Return the seconds of attention in a plain step of so many requests, by context
        length.
        """
        return [self._decode(requests, context).attention_s for context in CONTEXTS]

    def _decode(self, requests: int, context: int) -> KernelSeconds:
        _, decode = self._handle.run_static_per_op(batch_size=requests, isl=context, osl=2)
        matrices_s = self._matrices_s(decode, requests)
        return KernelSeconds(
            matrices_s, _seconds(decode, _is_output), _seconds(decode, _is_attention)
        )

    def _matrices_s(self, operations: Operations, tokens: int) -> float:
        return max(_seconds(operations, _is_matrix), self._limit.matrices_s(tokens))

    def _output_s(self, rows: int) -> float:
        """Return the seconds of the output layer for so many rows of logits."""
        _, decode = self._handle.run_static_per_op(batch_size=1, isl=1, osl=2)
        index = next(number for number, operation in enumerate(decode) if _is_output(operation[0]))
        return _seconds(
            self._handle.evaluate_generation_ops([index], batch_size=rows, s=1, x=rows), _is_output
        )


def measured_kernels(
    model: str, shapes: Architecture, device: str, engine: KernelEngine, members: int = 1
) -> MeasuredKernels:
    """Return the measured kernels of a model on `members` cards; raise SkitError if the database
    has none.
    """
    database = KernelDatabase(shapes, device, engine, members)
    return MeasuredKernels(
        model=model,
        device=device,
        dtype=DTYPE,
        engine=engine,
        source=f"{PACKAGE} {version(PACKAGE)}, {LICENCE}",
        kernels=database.tables(),
        tensor_parallel=members,
    )


TIE_BREAK = 0.01
"""How much less it costs to change the cell that contradicts the most others."""


def rising(table: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the table that falls along no row and no column, and is closest to a table of seconds.

    The sum of absolute logarithms of the ratios is the least, so that single disturbed measurements
    are replaced and the others stay as they are. Among equal sums, those cells change that
    contradict the most others.
    """
    import numpy as np
    from scipy.optimize import linprog

    seconds = np.asarray(table, dtype=np.float64)
    count = seconds.size
    number = np.arange(count).reshape(seconds.shape)
    before = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
    after = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
    rows, columns = (index.ravel() for index in np.indices(seconds.shape))
    is_larger = (rows[:, None] <= rows) & (columns[:, None] <= columns)  # [cell, cell of more work]
    contradicts = is_larger & (seconds.ravel()[:, None] > seconds.ravel())
    contradictions = contradicts.sum(0) + contradicts.sum(1)
    price = 1 - TIE_BREAK * contradictions / max(contradictions.max(), 1)
    unit = np.eye(count)
    nothing = np.zeros((len(before), 2 * count))
    # The unknowns are the logarithms of the result, and how far each lies above and below the
    # measured one.
    found = linprog(
        np.concatenate([np.zeros(count), price, price]),
        A_ub=np.hstack([unit[before] - unit[after], nothing]),
        b_ub=np.zeros(len(before)),
        A_eq=np.hstack([unit, -unit, unit]),
        b_eq=np.log(seconds).ravel(),
        bounds=[(None, None)] * count + [(0, None)] * (2 * count),
    )
    closest: list[list[float]] = np.exp(found.x[:count]).reshape(seconds.shape).tolist()
    return closest


def _config(shapes: Architecture) -> Written:
    """Return the configuration by which the package knows a model of these shapes."""
    mixture: Written = {
        "num_experts": shapes.experts,
        "num_experts_per_tok": shapes.active_experts,
        "moe_intermediate_size": shapes.expert_size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    }
    return {
        "architectures": [_CLASSES[shapes.family]],
        "model_type": shapes.family,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shapes.hidden_size,
        "num_hidden_layers": shapes.layers,
        "num_attention_heads": shapes.heads,
        "num_key_value_heads": shapes.kv_heads,
        "head_dim": shapes.head_dim,
        "intermediate_size": shapes.intermediate_size,
        "vocab_size": shapes.vocabulary,
        "max_position_embeddings": shapes.max_positions,
        "tie_word_embeddings": shapes.tied,
        **(mixture if shapes.experts else {}),
    }


def _seconds(operations: Operations, chosen: Callable[[str], bool]) -> float:
    """Return the seconds of those operations whose name is chosen; the package counts
    milliseconds.
    """
    return sum(milliseconds for name, milliseconds, *_ in operations if chosen(name)) / 1e3


def _is_attention(name: str) -> bool:
    return "attention" in name


def _is_output(name: str) -> bool:
    return "logits" in name


def _is_matrix(name: str) -> bool:
    return not _is_attention(name) and not _is_output(name)


def _rounded(seconds: Iterable[float]) -> tuple[float, ...]:
    """Return the seconds at five digits."""
    return tuple(float(f"{value:.5g}") for value in seconds)
