"""What an engine tells about itself and its target, in the kit's words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's name and version, its target, and the limits within which it takes drafts.

    `target` is a folder or a hub id. At most `longest_draft` tokens of a draft are verified. `batch_size` requests of
    at most `context` tokens run at a time. `recorded` is False for a process that drafts the same as another one,
    such as the ranks of a target that is split over devices.
    """

    engine: str
    version: str
    target: str
    dtype: str
    device: str
    vocabulary: int
    context: int
    batch_size: int
    longest_draft: int
    eos_ids: frozenset[int]
    recorded: bool = True
