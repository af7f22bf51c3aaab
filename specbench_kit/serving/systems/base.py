"""The system contract: a drafting method and place, a scheduler, and a prefix cache or none."""

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from specbench_kit.core.registry import Registry
from specbench_kit.core.typed_json import convert

DraftingPlace = Literal["edge", "server", "none"]


class ServingSystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to serve; `method` and `scheduler` are used unless the command line names others.

    With drafting on the `edge`, each device drafts, and every round crosses the link. Otherwise only prompt and answer
    cross it: on the `server`, a batch is drafted together before it is verified, as the method decides. Without
    `prefix_cache` every round is verified from its first token on.
    """

    summary: str
    method: str
    scheduler: str
    drafting: DraftingPlace = "edge"
    prefix_cache: bool = True
    source: str = ""


systems: Registry[ServingSystem] = Registry(
    "system", "specbench_kit.serving.systems", group="specbench_kit.systems"
)

for _path in Path(__file__).parent.glob("*.toml"):
    systems.register(_path.stem)(
        convert(ServingSystem, tomllib.loads(_path.read_text(encoding="utf-8")))
    )
