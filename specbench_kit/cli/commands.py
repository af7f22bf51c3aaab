"""Commands, which are found like every other part: in the folders of studies, and in other packages.

Imports no study by name, and nothing heavy: a study's `commands.py` says which commands it has.
"""

from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import NamedTuple

from specbench_kit.core.registry import Registry, modules_in_folders

GROUPS = (
    "Benchmark",
    "Results",
    "Train and measure what methods need",
    "Latencies",
    "Many devices",
    "Running servers",
    "The kit",
)
"""The headings of `skit --help`, in its order; those of other packages follow."""


class CommandEntry(NamedTuple):
    """A command: where its function is, its heading and its sentence in `skit --help`, and more for the
    command's own help.

    `function` is written as `package.module:name` and imported when the command runs.
    """

    function: str
    group: str
    summary: str
    details: str = ""
    example: str = ""

    def load(self) -> Callable[..., None]:
        """Import and return the function, whose parameters are the options."""
        function: Callable[..., None] = resolve_name(self.function)
        return function


class Commands(Registry[CommandEntry]):
    """The commands of the kit, in the `commands.py` of each study's folder, and those of other packages."""

    def own_modules(self) -> Iterator[str]:
        """Yield the kit's modules that register commands."""
        yield "specbench_kit.cli.own_commands"
        yield from modules_in_folders(self.package, "commands")

    def register(self, name: str) -> Callable[[CommandEntry], CommandEntry]:
        """Return a decorator that registers its entry as `name`.

        An entry of another package under the name of an earlier one is left out: every command line
        reads all of them, and would end with it.
        """

        def add(entry: CommandEntry) -> CommandEntry:
            package = self.package_of(entry)
            if name in self._entries and package != __name__.partition(".")[0]:
                self.leave_out(
                    name, f"the command '{name}' of {package} has a name that is taken: rename it"
                )
                return entry
            return super(Commands, self).register(name)(entry)

        return add

    def package_of(self, entry: CommandEntry) -> str:
        """Return the package that a command's function is in."""
        return entry.function.partition(".")[0].partition(":")[0]

    def fault(self, entry: object) -> str:
        """Return what is wrong with an installed entry."""
        return "" if isinstance(entry, CommandEntry) else "is no CommandEntry"


commands = Commands("command", "specbench_kit.studies", "specbench_kit.commands")


def commands_by_group() -> dict[str, dict[str, CommandEntry]]:
    """Return the commands by the headings of `skit --help`, in its order."""
    entries = commands.all()
    groups = dict.fromkeys([*GROUPS, *(entry.group for entry in entries.values())])
    return {
        title: {name: entry for name, entry in entries.items() if entry.group == title}
        for title in groups
    }
