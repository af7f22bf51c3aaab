"""Packages of others, laid out in a folder as an installer leaves them, and what is left without any."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from specbench_kit.core.registry import Registry

T = TypeVar("T")


def of_the_kit(registry: Registry[T]) -> dict[str, T]:
    """Return the entries of a registry that the kit itself has, whatever other packages this environment has."""
    others = registry.of_other_packages()
    return {name: entry for name, entry in registry.all().items() if name not in others}


ONLY_PLUG_INS_OF = """
from importlib import metadata

metadata.entry_points = lambda **params: metadata.EntryPoints(
    point for package in metadata.distributions(path={folders!r}) for point in package.entry_points
).select(**params)
"""


def only_plug_ins_of(*folders: Path) -> str:
    """Return code for the beginning of a program that leaves it no plug-ins but those installed in these folders.

    A test of what the kit imports does not depend on which packages of others this environment has.
    """
    return ONLY_PLUG_INS_OF.format(folders=list(map(str, folders)))


def install(site: Path, module: str, code: str, group: str, entries: Iterable[str]) -> None:
    """Write a module and the metadata of its package, with entry points such as `name = module:Class` of a group."""
    information = site / f"{module}-1.0.dist-info"
    information.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    name = module.replace("_", "-")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))
