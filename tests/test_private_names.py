"""What other libraries call private, by a name that begins with `_`, may go with their next version.

Every such name that the kit uses stands in a table, with the reason why nothing public serves.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import specbench_kit

ROOT = Path(specbench_kit.__file__).parent
DOCUMENTED = {"_asdict", "_replace", "_exit"}
"""Public in all but the name, in Python's own documentation."""
PRIVATE = {
    "_completion_scripts": "typer: zsh's first tab; without it, the first tab does nothing",
    "_completion_shared": "typer: the module of _completion_scripts; its absence is caught",
    "_linear_pointwise": "torch: oneDNN's product of packed weights has no public name",
    "_reorder_linear_weight": "torch: oneDNN's packing of weights has no public name",
    "_modules": "torch: a copy of a module that shares its parts",
    "_hf_hook": "accelerate: looked for alone, and a model without is one without hooks",
    "_is_stateful": "transformers: looked for alone, with a default; nothing public tells",
    "_name_or_path": "transformers: a key of configurations, left out of those that are written",
    "_model_name_or_path": "transformers: a key of configurations, left out of those that are written",
}


def _sources() -> Iterator[ast.AST]:
    for file in ROOT.rglob("*.py"):
        if not file.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def _defined(node: ast.AST) -> Iterator[str]:
    """Names that the kit gives itself: functions, classes, variables, attributes of its own objects."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            yield name


def _used(node: ast.AST) -> Iterator[str]:
    """Names that are read: as attributes, keywords and imports, and as texts for `getattr` and for keywords."""
    match node:
        case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.ImportFrom(module=module, names=names):
            yield from (module or "").split(".")
            yield from (alias.name for alias in names)
        case ast.Import(names=names):
            yield from (part for alias in names for part in alias.name.split("."))
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr" | "setattr"),
            args=[_, ast.Constant(value=str(name)), *_],
        ):
            yield name
        case ast.Dict(keys=keys):
            yield from (
                key.value
                for key in keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            yield from (
                part.value
                for part in parts
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def test_names_that_are_private_elsewhere_have_a_reason() -> None:
    nodes = list(_sources())
    own = {name for node in nodes for name in _defined(node)}
    used = {name for node in nodes for name in _used(node) if name.isidentifier()}
    private = {name for name in used - own if name.startswith("_") and not name.endswith("_")}
    assert private - DOCUMENTED == PRIVATE.keys()
    assert private >= DOCUMENTED
