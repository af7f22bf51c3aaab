"""A registry that finds its entries by itself: in the modules of one package, then in installed
plug-ins.
"""

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from traceback import walk_tb
from typing import Any, Generic, NamedTuple, TypeVar

from specbench_kit.core.errors import SkitError, valid_choices
from specbench_kit.core.near_misses import near_misses, words
from specbench_kit.core.plain_text import one_line

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class PlugIn(NamedTuple):
    """What another package brings: the kind and the name of its first entry."""

    kind: str
    name: str


_PLUG_INS: dict[str, PlugIn] = {}
"""The plug-ins that were loaded, by the name of their package."""


class PlugInFault(NamedTuple):
    """Where the code of a plug-in stood when an error was raised."""

    plug_in: PlugIn
    function: str
    file: str
    line: int


def plug_in_fault(error: BaseException) -> PlugInFault | None:
    """Return the innermost place in the code of a plug-in that an error came through; None if there
    is none.
    """
    found = None
    for frame, line in walk_tb(error.__traceback__):
        plug_in = _PLUG_INS.get(str(frame.f_globals.get("__name__")).partition(".")[0])
        if plug_in is not None:
            code = frame.f_code
            found = PlugInFault(plug_in, code.co_qualname, code.co_filename, line)
    return found


def plug_in_problem(error: BaseException, phase: str = "") -> str | None:
    """Return in a line what failed in the code of a plug-in, where, and in which phase of the work.

    None if an error came through no plug-in.
    """
    found = plug_in_fault(error)
    if found is None:
        return None
    kind, name = found.plug_in
    during = f" during {phase}" if phase else ""
    return one_line(
        f"the {kind} '{name}', which is no part of the kit, fails in {found.function} ({found.file}, line {found.line})"
        f"{during}: {type(error).__name__}: {error}"
    )


class Registry(Generic[T]):
    """Named entries of one `kind`, such as methods.

    On first use it imports all modules of `package`, which register their entries, and then loads the entry points of
    `group` (by default called like the package) that other distributions declare.
    """

    def __init__(self, kind: str, package: str, group: str | None = None) -> None:
        self.kind = kind
        self.package = package
        self.group = group or package
        self._entries: dict[str, T] = {}
        self._broken: dict[str, str] = {}
        """Why an entry cannot be used, by its name."""
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its object as `name`; it raises SkitError if another
        object has it.
        """

        def add(entry: T) -> T:
            if self._entries.get(name, entry) is not entry:
                raise SkitError(f"two {self.kind}s are called '{name}': rename one of them")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """Return the entry called `name`; SkitError with the valid names if there is none."""
        entries = self.all()
        if name in self._broken:
            raise SkitError(self._broken[name])
        if name not in entries:
            variants = [entry for entry in entries if entry.startswith(f"{name}-")]
            # Every kind that has so many entries that they are not named here has a list.
            choices = valid_choices(name, entries, f"skit list {self.kind}s", variants)
            raise SkitError(f"unknown {self.kind} '{name}'{choices}")
        return entries[name]

    def all(self) -> dict[str, T]:
        """Return all entries by name, in alphabetical order."""
        if not self._discovered:
            # Set first: a module that is imported below may use the registry.
            self._discovered = True
            for module in self.own_modules():
                importlib.import_module(module)
            for point in _entry_points().select(group=self.group):
                try:
                    entry = point.load()
                    if fault := self.fault(entry):
                        self._leave_out_wrong(point, fault)
                        continue
                    self.register(point.name)(entry)
                    if self._entries.get(point.name) is entry:
                        package = point.module.partition(".")[0]
                        _PLUG_INS.setdefault(package, PlugIn(self.kind, point.name))
                except SkitError:
                    raise
                except Exception as error:  # whatever is wrong with it, nothing else depends on it
                    self._leave_out(point, error)
        return dict(sorted(self._entries.items()))

    def own_modules(self) -> Iterator[str]:
        """Yield the names of the kit's modules that register entries when they are imported."""
        package = importlib.import_module(self.package)
        # A single module has no path: it registers its entries itself.
        paths = getattr(package, "__path__", ())
        yield from (module.name for module in pkgutil.iter_modules(paths, f"{self.package}."))

    def package_of(self, entry: T) -> str:
        """Return the name of the package at the top of whose folders an entry is."""
        return entry.__module__.partition(".")[0]

    def fault(self, entry: object) -> str:
        """Return what others would meet only when they use an installed entry, or never, as in `has
        no policy()`; empty if nothing is wrong with it.
        """
        if missing := _missing(entry):
            return f"has no {' and no '.join(missing)}"
        misspelt = self._misspelt(entry)
        return f"has {words(misspelt)}" if misspelt else ""

    def of_other_packages(self) -> dict[str, T]:
        """Return the entries, by name, that other packages than this one bring."""
        own = __name__.partition(".")[0]
        return {name: entry for name, entry in self.all().items() if self.package_of(entry) != own}

    def left_out(self) -> dict[str, str]:
        """Return the entries that cannot be used, by name, each with why and what to do."""
        self.all()
        return dict(sorted(self._broken.items()))

    def leave_out(self, name: str, reason: str) -> None:
        """Warn of an entry that cannot be used; it is refused where it is asked for, and all others
        serve.
        """
        self._broken[name] = reason
        _LOG.warning("LEFT OUT: %s", one_line(reason))

    def _leave_out_wrong(self, point: EntryPoint, fault: str) -> None:
        """Leave out an installed entry that has a fault."""
        self.leave_out(
            point.name,
            f"the installed {self.kind} '{point.name}' ({point.value}) {fault}: mend it, {_removal(point)}",
        )

    def _misspelt(self, entry: object) -> dict[str, str]:
        """Return the names that an installed class misspells, with those of the contract that they
        may mean.

        The contract is the nearest base of the class which is the kit's own.
        """
        if not isinstance(entry, type):
            return {}
        own = self.package.partition(".")[0]
        contract = next(
            (base for base in entry.__mro__ if base.__module__.partition(".")[0] == own), None
        )
        return near_misses(entry, contract) if contract else {}

    def _leave_out(self, point: EntryPoint, error: Exception) -> None:
        """Leave out an installed entry that cannot be imported."""
        place = _place(error, point.module.partition(".")[0])
        reason, remedy = (f"{error}", "install its package again")
        if place:
            message = error.msg if isinstance(error, SyntaxError) else error
            reason, remedy = f"{type(error).__name__}: {message} ({place})", "mend it"
        self.leave_out(
            point.name,
            f"the installed {self.kind} '{point.name}' cannot be imported: {reason}: {remedy}, {_removal(point)}",
        )


def modules_in_folders(package: str, module: str) -> Iterator[str]:
    """Yield the names of the modules called `module` in the folders of a package, of those that have
    one.
    """
    paths = importlib.import_module(package).__path__
    for folder in pkgutil.iter_modules(paths, f"{package}."):
        name = f"{folder.name}.{module}"
        if folder.ispkg and find_spec(name) is not None:
            yield name


def _removal(point: EntryPoint) -> str:
    """Return how to be rid of an entry that nobody mends."""
    return f"or remove it with pip uninstall {point.dist.name if point.dist else point.module}"


def _missing(entry: object) -> list[str]:
    """Return what the contract of a class asks for and the class lacks: methods, and attributes
    without a default.
    """
    if not isinstance(entry, type):
        return []
    declared = {
        name
        for base in entry.__mro__
        for name, annotation in getattr(base, "__annotations__", {}).items()
        if "ClassVar" in str(annotation)
    }
    methods = sorted(getattr(entry, "__abstractmethods__", ()))
    return [
        *(f"{name}()" for name in methods),
        *sorted(name for name in declared if not hasattr(entry, name)),
    ]


def _place(error: Exception, package: str) -> str:
    """Return the file and line of a package at which its import failed; nothing if it failed before
    it began.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    lines = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package
    ]
    return lines[-1] if lines else ""


@cache
def _entry_points() -> Any:
    """Return the entry points of all installed distributions, whose files are read only once."""
    return entry_points()
