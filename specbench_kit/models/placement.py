"""Models that do not fit one device, and checkpoints that are quantised."""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from specbench_kit.core.errors import SkitError

PACKAGES = {
    "bitsandbytes": "bitsandbytes",
    "gptq": "gptqmodel",
    "awq": "gptqmodel",
    "compressed-tensors": "compressed_tensors",
    "torchao": "torchao",
    "quanto": "optimum.quanto",
    "hqq": "hqq",
    "eetq": "eetq",
}
"""The Python module with which transformers loads a checkpoint, by its quantisation method."""
MEMORY = re.compile(r"(cpu|\d+)=(\d+(?:\.\d+)?[KMGT]i?B)")
ELSEWHERE = "name a smaller or unquantised one, or let an engine serve it and compare there"


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices for the weights: one, or all of them by `spread`, within the `memory` allowed on
    each.
    """

    spread: str = ""
    memory: str = ""

    def __post_init__(self) -> None:
        if self.spread not in ("", "auto", "balanced", "sequential"):
            raise SkitError(
                f"--device-map must be auto, balanced or sequential, not '{self.spread}'"
            )
        if self.memory and not self.spread:
            raise SkitError("--max-memory limits what --device-map may use: give both")
        limits(self.memory)

    def options(self, config: Any, label: str, device: torch.device) -> dict[str, Any]:
        """Return loading options for transformers; empty if the whole model moves to `device`
        afterwards.
        """
        quantised = _method(config)
        if quantised:
            require_package(quantised, label)
        if self.spread:
            memory = limits(self.memory)
            return {"device_map": self.spread, **({"max_memory": memory} if memory else {})}
        return {"device_map": {"": device}} if quantised else {}


def limits(text: str) -> dict[int | str, str]:
    """Parse a text like `0=20GiB,cpu=60GiB` into memory limits by device."""
    memory: dict[int | str, str] = {}
    for part in filter(None, text.split(",")):
        match = MEMORY.fullmatch(part.strip())
        if match is None:
            raise SkitError(
                f"--max-memory takes DEVICE=SIZE with commas, as in 0=20GiB,cpu=60GiB, not '{part}'"
            )
        memory[match[1] if match[1] == "cpu" else int(match[1])] = match[2]
    return memory


def require_package(method: str, label: str) -> None:
    """Raise SkitError, naming the package, if the one that loads a quantised checkpoint is
    missing.
    """
    package = PACKAGES.get(method)
    if package is not None and find_spec(package.partition(".")[0]) is None:
        name = package.replace("_", "-").replace(".", "-")
        raise SkitError(
            f"model '{label}' is quantised with {method}: pip install {name}, or {ELSEWHERE}"
        )


def require_memory(model: Any, label: str) -> None:
    """Raise SkitError if transformers has left weights on disk because no device had room for
    them.
    """
    if "disk" in set(map(str, getattr(model, "hf_device_map", {}).values())):
        raise SkitError(
            f"model '{label}' does not fit the memory it is given: raise --max-memory, or {ELSEWHERE}"
        )


def _method(config: Any) -> str:
    """Return the quantisation method of a checkpoint; empty if it is not quantised."""
    quantisation = getattr(config, "quantization_config", None)
    if not quantisation:
        return ""
    is_dict = isinstance(quantisation, dict)
    method = (
        quantisation.get("quant_method") if is_dict else getattr(quantisation, "quant_method", None)
    )
    return str(getattr(method, "value", method) or "bitsandbytes")
