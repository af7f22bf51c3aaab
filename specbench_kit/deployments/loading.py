"""Deployments on disk: bundled ones by name, the user's own by path, with fields replaced."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.fields import Value, parse_field, replace_fields
from specbench_kit.deployments.parsing import parse
from specbench_kit.profilers import cards

LOCAL = "local"
"""The name of this machine as it is: measured, and described by no file."""
LIBRARY = Path(__file__).with_name("library")


@dataclass(frozen=True)
class Definition:
    """The content of a deployment's TOML file; `changes` are the fields that were replaced in it, for messages."""

    path: Path
    label: str
    content: JsonObject
    changes: tuple[str, ...] = ()

    @property
    def sweep(self) -> Mapping[str, Sequence[Value]]:
        """The values that the file proposes to sweep over, by field."""
        self.build()  # which checks the content
        sweep: Mapping[str, Sequence[Value]] = self.content.get("sweep", {})
        return sweep

    def replace(self, values: Mapping[str, Value]) -> "Definition":
        """Return the definition with other values of fields such as `link.rtt_s`."""
        changes = tuple(f"{key}={value}" for key, value in values.items())
        content = replace_fields(self.content, values, self.path.parent)
        return Definition(self.path, self.label, content, self.changes + changes)

    def build(self) -> Deployment:
        """Return the deployment; raise SkitError with the file and the key that is wrong."""
        changes = f" with {' and '.join(self.changes)}" if self.changes else ""
        return parse(self.content, self.path.parent, f"the deployment {self.label}{changes}")


def load(name: str, replaced: Sequence[str] = ()) -> Deployment | None:
    """Return the deployment of that name or in that .toml file, with `key=value` fields replaced.

    None stands for this machine.
    """
    values = dict(map(parse_field, replaced))
    if name != LOCAL:
        return find(name).replace(values).build()
    if values:
        raise SkitError("--set replaces fields of a modelled deployment: choose one with --deployment")
    return None


def find(name: str) -> Definition:
    """Return the definition of a bundled deployment, or the one in a .toml file."""
    if cards.names_a_file(name):
        path = Path(name).expanduser()
        return Definition(path, name, cards.read_toml(path))
    definitions = bundled()
    if name not in definitions:
        raise cards.unknown_name("deployment", name, [LOCAL, *definitions], ", or a .toml file")
    return definitions[name]


@cache
def bundled() -> dict[str, Definition]:
    """Return every deployment that ships with the kit, by name."""
    files = sorted(LIBRARY.glob("*.toml"), key=lambda path: path.stem)
    return {path.stem: Definition(path, path.stem, cards.read_toml(path)) for path in files}
