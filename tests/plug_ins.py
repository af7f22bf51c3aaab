"""Packages of others, laid out in a folder as an installer leaves them."""

from collections.abc import Iterable
from pathlib import Path


def install(site: Path, module: str, code: str, group: str, entries: Iterable[str]) -> None:
    """Write a module and the metadata of its package, with entry points such as `name = module:Class` of a group."""
    information = site / f"{module}-1.0.dist-info"
    information.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    name = module.replace("_", "-")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))
