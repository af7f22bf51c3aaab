"""Misspelt names of a class: what it defines, nothing reads, and its contract knows under a similar
name.
"""

import sys
from collections.abc import Iterator
from difflib import get_close_matches
from types import CodeType, FunctionType

LEAST_SIMILAR = 0.8
"""The similarity of two names, from 0 to 1, from which one may be meant by the other."""


def near_misses(kind: type, contract: type) -> dict[str, str]:
    """Return the names that a class seems to misspell, each with that of the contract which it may
    mean.

    A name is misspelt only if the class leaves out the similar one, and if no code of its package
    reads it: helpers such as `drafted` or `observed` are read by the code that needs them. Options,
    which are annotated, are left alone.
    """
    own = [
        base
        for base in kind.__mro__
        if base not in contract.__mro__ and not issubclass(contract, base)
    ]
    names = {name for base in own for name in vars(base) if not name.startswith("_")}
    options = {name for base in own for name in vars(base).get("__annotations__", {})}
    left_out = [name for name in dir(contract) if not name.startswith("_") and name not in names]
    found = {}
    for name in sorted(names - options - set(dir(contract))):
        if similar := get_close_matches(name, left_out, n=1, cutoff=LEAST_SIMILAR):
            found[name] = similar[0]
    # What code reads takes longer to say, and is asked only for names that are similar.
    read = {name for base in own for name in _names_read(base)} if found else set()
    return {name: meant for name, meant in found.items() if name not in read}


def words(misses: dict[str, str]) -> str:
    """Return misspelt names in words, with what may be meant."""
    return " and ".join(
        f"'{name}', which nothing reads (did you mean '{meant}'?)" for name, meant in misses.items()
    )


def _names_read(kind: type) -> Iterator[str]:
    """Yield the names that functions of a class's package read, as attributes or by themselves."""
    package = kind.__module__.partition(".")[0]
    modules = [
        module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package
    ]
    members = [member for module in modules for member in list(vars(module).values())]
    classes = {
        member
        for member in members
        if isinstance(member, type) and member.__module__.startswith(package)
    }
    members += [member for of_class in {*classes, kind} for member in vars(of_class).values()]
    for member in members:
        for function in (
            member,
            *(getattr(member, name, None) for name in ("fget", "__func__", "func")),
        ):
            if isinstance(function, FunctionType):
                yield from _names_in(function.__code__)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        # Names that are read by getattr stand as texts, alone or in a sequence.
        yield from (
            text
            for text in (constant if isinstance(constant, tuple) else (constant,))
            if isinstance(text, str)
        )
