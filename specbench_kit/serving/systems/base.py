"""The system contract: a scheduler, a place and a way to draft, and whether the server keeps what it has read."""

from dataclasses import dataclass
from typing import Literal

from specbench_kit.core.registry import Registry

Drafting = Literal["edge", "server", "none"]


@dataclass(frozen=True)
class ServingSystem:
    """One way to serve; `method` and `scheduler` are what it uses unless told otherwise.

    Drafting on the `edge`, each device drafts and every round crosses the link; otherwise the server goes on by itself
    and only prompt and answer cross it. On the `server`, a batch is drafted together before it is verified, as
    the method does. Without `prefix_cache` every round is verified from its first token on.
    """

    summary: str
    method: str
    scheduler: str
    drafting: Drafting = "edge"
    prefix_cache: bool = True
    source: str = ""


systems: Registry[ServingSystem] = Registry("system", "specbench_kit.serving.systems", group="specbench_kit.systems")
