"""A registry that discovers its entries: modules of one package, then entry points of other distributions."""

import importlib
import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from specbench_kit.core.errors import SkitError

T = TypeVar("T")


class Registry(Generic[T]):
    """Named entries of one kind; on first use `package` is imported, and the entry points of `group` or of its name."""

    def __init__(self, kind: str, package: str, group: str | None = None) -> None:
        self.kind = kind
        self.package = package
        self.group = group or package
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files its object under `name`; a name that is taken is an error."""

        def add(entry: T) -> T:
            if self._entries.get(name, entry) is not entry:
                raise SkitError(f"two {self.kind}s are called '{name}': rename one of them")
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """The entry called `name`; an unknown name is an error that lists the known ones."""
        entries = self.all()
        if name not in entries:
            kinds = [entry for entry in entries if entry.startswith(f"{name}-")]
            near = kinds or get_close_matches(name, entries, n=1)
            quoted = " or ".join(f"'{entry}'" for entry in near)
            hint = f" (did you mean {quoted}?)" if near else ""
            raise SkitError(f"unknown {self.kind} '{name}'{hint}; known: {', '.join(entries)}")
        return entries[name]

    def all(self) -> dict[str, T]:
        """Every entry by name, sorted."""
        if not self._discovered:
            self._discovered = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__, f"{self.package}."):
                importlib.import_module(module.name)
            for point in _installed().select(group=self.group):
                self._load(point.name, point.load)
        return dict(sorted(self._entries.items()))

    def _load(self, name: str, load: Callable[[], T]) -> None:
        try:
            self.register(name)(load())
        except (ImportError, AttributeError) as error:
            raise SkitError(f"the installed {self.kind} '{name}' cannot be imported: {error}") from error


@cache
def _installed() -> Any:
    """Those of every distribution, which takes a look at each."""
    return entry_points()
