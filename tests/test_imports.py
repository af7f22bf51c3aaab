"""Imports point one way: no circle of modules, and none of folders.

Imports for type checking and inside functions count: they say as much about who knows whom.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import specbench_kit

ROOT = Path(specbench_kit.__file__).parent
Graph = dict[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    paths = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


@cache
def imports(root: Path) -> Graph:
    """The modules of the package that each module names in an import statement, wherever it stands."""
    paths = modules(root)
    graph = {}
    for name, path in paths.items():
        named = set(_named(ast.walk(ast.parse(path.read_text())), name, path.name == "__init__.py"))
        graph[name] = {_module(target, paths) for target in named if _module(target, paths)} - {
            name
        }
    return graph


def _named(nodes: Iterable[ast.AST], module: str, is_package: bool) -> Iterable[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = (
                module.split(".")[: len(module.split(".")) - node.level + is_package]
                if node.level
                else []
            )
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def _module(target: str, known: Mapping[str, Path]) -> str:
    """The module that an imported name is, or lies in; nothing outside of the package."""
    return (
        target
        if target in known
        else target.rpartition(".")[0]
        if target.rpartition(".")[0] in known
        else ""
    )


def folders(root: Path) -> Graph:
    """The folders that the modules of each folder import from; a module at the top is a folder of its own."""
    paths = modules(root)

    def folder(module: str) -> str:
        inside = paths[module].parent.relative_to(root).parts
        return ".".join(inside) if inside else module.rpartition(".")[2]

    graph: defaultdict[str, set[str]] = defaultdict(set)
    for module, targets in imports(root).items():
        graph[folder(module)] |= {folder(target) for target in targets} - {folder(module)}
    return dict(graph)


def circle(graph: Graph) -> list[str]:
    """One circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_modules() -> None:
    assert circle(imports(ROOT)) == []


def test_no_circle_of_folders() -> None:
    assert circle(folders(ROOT)) == []


def test_no_circle_of_rooms() -> None:
    """A room is a folder at the top of the package, with all that is in it."""
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for folder, targets in folders(ROOT).items():
        room = folder.partition(".")[0]
        rooms[room] |= {target.partition(".")[0] for target in targets} - {room}
    assert circle(rooms) == []
    assert len(rooms.keys() - {"__main__"}) <= 20, "the start of `python -m` is no room"


def test_decoding_knows_nobody_above_it() -> None:
    house, graph = (
        {"decoding", "decoding.drafting", "decoding.pipeline", "decoding.processes"},
        folders(ROOT),
    )
    for folder in house:
        assert graph[folder] <= house | {"core", "models", "models.executors", "models.heads"}


def test_reports_know_nobody_whose_runs_they_render() -> None:
    runs, graph = {"live", "serving", "studies", "traces"}, folders(ROOT)
    for folder in graph:
        if folder.partition(".")[0] in {"metrics", "reports", "runs"}:
            assert {name.partition(".")[0] for name in graph[folder]} & runs == set()


def test_metrics_know_no_report() -> None:
    assert {name for name in folders(ROOT)["metrics"] if name.startswith("reports")} == set()


def test_the_command_line_finds_studies_by_name_and_imports_none() -> None:
    """A study's command imports the frame, so that a command of another package is like one of the kit."""
    assert not [
        name for name in folders(ROOT)["cli"] if name.partition(".")[0] in ("api", "studies")
    ]


def test_imports_of_every_kind_close_a_circle(tmp_path: Path) -> None:
    package = tmp_path / "house"
    for name, text in {
        "__init__": "",
        "a": "from house import b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.c import thing",
        "c": "def work():\n    from . import a\n\nthing = 1",
        "d": "import house.a",
    }.items():
        package.mkdir(exist_ok=True)
        (package / f"{name}.py").write_text(text)
    assert set(circle(imports(package))) == {"house.a", "house.b", "house.c"}


STUDIES_OF: Graph = {
    "ab": {"interchange"},
    "calibration": {"ab"},
    "field": {"serving"},
    "interchange": {"bench"},
    "planning": {"serving"},
    "recording": {"bench"},
    "reporting": {"bench"},
    "reproduction": {"field", "recording", "serving", "training"},
    "rerun": {"bench"},
    "serving": {"recording"},
    "suite": {"ab"},
    "sweep": {"bench", "recording"},
    "training": {"recording"},
    "why": {"ab"},
}
"""The other studies that each study imports.

The list may only shrink: what two studies share belongs to a room below them, or into a module right in `studies/`.
"""


def studies_of(root: Path) -> Graph:
    """The other studies that the modules of each study import; a module right in the folder is none."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for folder, targets in folders(root).items():
        study, others = _study(folder), {_study(target) for target in targets}
        graph[study] |= others - {study, ""}
    return {study: others for study, others in graph.items() if study and others}


def _study(folder: str) -> str:
    room, *inside = folder.split(".")
    return inside[0] if room == "studies" and inside else ""


def test_a_study_imports_no_other_study_than_those_on_its_list() -> None:
    found = studies_of(ROOT)
    new = {study: others - STUDIES_OF.get(study, set()) for study, others in found.items()}
    assert {study: others for study, others in new.items() if others} == {}, "not on the list"
    gone = {study: others - found.get(study, set()) for study, others in STUDIES_OF.items()}
    assert {study: others for study, others in gone.items() if others} == {}, "take it off the list"
