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
"""By the method that a checkpoint was quantised with, the module that transformers loads it by."""
MEMORY = re.compile(r"(cpu|\d+)=(\d+(?:\.\d+)?[KMGT]i?B)")
ELSEWHERE = "name a smaller or unquantised one, or let an engine serve it and compare there"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights go: on one device, or by `spread` over all that there are, within `memory` of each."""

    spread: str = ""
    memory: str = ""

    def __post_init__(self) -> None:
        if self.spread not in ("", "auto", "balanced", "sequential"):
            raise SkitError(f"--device-map must be auto, balanced or sequential, not '{self.spread}'")
        if self.memory and not self.spread:
            raise SkitError("--max-memory limits what --device-map may use: give both")
        limits(self.memory)

    def options(self, config: Any, label: str, device: torch.device) -> dict[str, Any]:
        """What transformers is told; empty where the whole model is moved to `device` afterwards."""
        quantised = _method(config)
        if quantised:
            require_package(quantised, label)
        if self.spread:
            return {"device_map": self.spread, **({"max_memory": found} if (found := limits(self.memory)) else {})}
        return {"device_map": {"": device}} if quantised else {}


def limits(text: str) -> dict[int | str, str]:
    """`0=20GiB,cpu=60GiB` by device."""
    found: dict[int | str, str] = {}
    for part in filter(None, text.split(",")):
        match = MEMORY.fullmatch(part.strip())
        if match is None:
            raise SkitError(f"--max-memory takes DEVICE=SIZE with commas, as in 0=20GiB,cpu=60GiB, not '{part}'")
        found[match[1] if match[1] == "cpu" else int(match[1])] = match[2]
    return found


def require_package(method: str, label: str) -> None:
    """A quantised checkpoint whose package is missing is an error that names it."""
    package = PACKAGES.get(method)
    if package is not None and find_spec(package.partition(".")[0]) is None:
        name = package.replace("_", "-").replace(".", "-")
        raise SkitError(f"model '{label}' is quantised with {method}: pip install {name}, or {ELSEWHERE}")


def require_memory(model: Any, label: str) -> None:
    """Weights that are nowhere, since no device had room for them, are an error."""
    if "disk" in set(map(str, getattr(model, "hf_device_map", {}).values())):
        raise SkitError(f"model '{label}' does not fit the memory it is given: raise --max-memory, or {ELSEWHERE}")


def _method(config: Any) -> str:
    """How a checkpoint was quantised; empty where it was not."""
    found = getattr(config, "quantization_config", None)
    if not found:
        return ""
    method = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    return str(getattr(method, "value", method) or "bitsandbytes")
