"""Models whose weights stay in their files until something computes with them.

A shell is a transformers model on torch's meta device: its modules, configuration and rotary
tables, without weights. An executor with a layout of its own reads the weights one by one from the
files, so that they are held once. Everything else calls `with_weights`, which reads them into the
shell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""The types of weights that a shell may have in its files, by their names in safetensors."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a safetensors file, as the file's header describes it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """The type in the file; None for one that a shell cannot have."""

    def read(self) -> Tensor:
        """Read the tensor; its memory is the file's, mapped, until the last reference to it is
        gone.
        """
        try:
            with safe_open(self.file, framework="pt") as content:
                tensor: Tensor = content.get_tensor(self.name)
            if (tuple(tensor.shape), tensor.dtype) != (self.shape, self.dtype):
                raise ValueError(f"it is {tuple(tensor.shape)} of {tensor.dtype}")
        except (OSError, SafetensorError, ValueError) as error:
            raise SkitError(
                f"cannot read {self.name} in '{self.file}', which has changed since the run began: {first_line(error)}"
            ) from error
        return tensor


def read_headers(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return all tensors of a checkpoint by name, without reading any; OSError or SafetensorError
    for damaged files.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (it is no dictionary)
                header = content.get_slice(name)
                dtype = TYPES.get(header.get_dtype())
                tensors[name] = StoredTensor(path, name, tuple(header.get_shape()), dtype)
    return tensors


class Shell(nn.Module):
    """Makes a shell answer where its weights will be, which torch would answer with the meta
    device.
    """

    @property
    def device(self) -> torch.device:
        held = next(self.parameters()).device
        return torch.device("cpu") if held.type == "meta" else held


def mark_shell(model: Any) -> Any:
    """Return the same model, which from now on answers as a `Shell` where its weights will be."""
    kind = type(model)
    model.__class__ = type(kind.__name__, (Shell, kind), {"__module__": kind.__module__})
    return model


def restore_tables(model: Any, config: Any) -> None:
    """Compute the rotary tables of a model that was made on the meta device, where constructors
    fill nothing.
    """
    for module in model.modules():
        if hasattr(module, "inv_freq") and hasattr(module, "rope_type"):
            fresh = type(module)(config=config)
            for name, table in fresh.named_buffers():
                setattr(module, name, table)


def stored_tensor(parameter: Tensor) -> StoredTensor | None:
    """Return where the values of a shell's parameter are; None for a parameter that has its
    values.
    """
    return getattr(parameter, "stored", None) if parameter.is_meta else None


def weight_of(parameter: Tensor) -> Tensor:
    """Return the values of a parameter, from its file if they are not in memory.

    They are those of the parameter's type, in the type of the file if that is the narrower one.
    """
    stored = stored_tensor(parameter)
    if stored is None:
        return parameter
    tensor = stored.read()
    widened = torch.promote_types(tensor.dtype, parameter.dtype) == parameter.dtype
    return tensor if widened else tensor.to(parameter.dtype)


def with_weights(model: Any) -> Any:
    """Return the same model after its weights were read, unless they are in memory already or it
    has none.
    """
    if not isinstance(model, nn.Module):  # a synthetic model
        return model
    filled: dict[Tensor, nn.Parameter] = {}  # a tied layer has the parameter of another one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or stored_tensor(parameter) is None:
                continue
            if parameter not in filled:
                values = weight_of(parameter).to(parameter.dtype, copy=True)
                filled[parameter] = nn.Parameter(values, requires_grad=False)
            module._parameters[name] = filled[parameter]
    return model
