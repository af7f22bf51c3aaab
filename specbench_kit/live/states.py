"""Hidden states on the wire: bfloat16, token by token, a session's layers one after the other."""

import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError

NUMBER_BYTES = 2
"""Size of one number."""


def to_bytes(states: Tensor) -> bytes:
    """Return hidden states [tokens, layers x width] as they are sent."""
    return states.to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy().tobytes()


def from_bytes(content: bytes, tokens: int) -> Tensor:
    """Return the hidden states [tokens, layers x width] of that many tokens; raise SkitError if
    they are cut short.
    """
    numbers, rest = divmod(len(content), NUMBER_BYTES)
    if rest or numbers == 0 or numbers % tokens:
        raise SkitError(
            f"the server sent {len(content)} bytes of hidden states for {tokens} tokens: it is broken"
        )
    states = torch.frombuffer(bytearray(content), dtype=torch.bfloat16)
    return states.view(tokens, -1).float()
