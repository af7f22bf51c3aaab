"""`skit new`: a package of your own to start from."""

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Literal

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import Option
from specbench_kit.runs.folder import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOptions:
    """The kind and name of the plug-in, and the folder for its package."""

    kind: Annotated[Literal["method"], Option("Kind of plug-in: method.", argument=True)]
    name: Annotated[str, Option("Name of the plug-in.", argument=True)]
    out: Annotated[Path, Option("Folder in which the package's folder is created.")] = Path(".")


def new(options: NewOptions) -> None:
    """Write the package and print the next steps."""
    from rich.console import Console

    from specbench_kit.cli.common import say

    console = Console()
    folder = new_method(options.name, options.out)
    for file in sorted(folder.iterdir()):
        say(console, f"written: {file}")
    say(console, f"next: pip install --editable '{folder}[test]'")
    say(console, f"then: pytest {folder}")
    say(
        console,
        f"then: skit bench --replay qwen2.5-coder --deployment wan --method {options.name} --method fixed-k",
    )


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "skit-$name"
version = "0.1.0"
dependencies = ["specbench-kit"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."specbench_kit.methods"]
$name = "$module:$kind"

[tool.setuptools]
py-modules = ["$module"]
"""

METHOD = '''\
"""$name: draft a chain that ends at the first token of which the draft model is unsure."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from specbench_kit.methods.base import Method, Policy, methods, require

if TYPE_CHECKING:  # skit list imports this file: what is heavy, such as torch, is imported where it is used
    from specbench_kit.decoding.drafter import Drafter


@methods.register("$name")
@dataclass(frozen=True)
class $kind(Method):
    """Drafts while the last token's probability is at least `sure`, and at most `longest` tokens."""

    sure: float = 0.6
    longest: int = 8
    source = "yours"
    group = "stop-rule"  # the heading in lists and reports
    draft_limit = "longest"  # the option that a replay lowers to what its trace holds
    grid = MappingProxyType({"sure": (0.2, 0.4, 0.6, 0.8), "longest": (4, 8)})  # what skit tune tries

    def __post_init__(self) -> None:
        require(0 <= self.sure <= 1, "$name: sure must lie in 0..1")
        require(self.longest >= 1, "$name: longest must be at least 1")

    def policy(self) -> Policy:
        return ${kind}Policy(self.sure, self.longest)


@dataclass
class ${kind}Policy(Policy):
    sure: float
    longest: int

    def draft(self, drafter: "Drafter") -> None:
        """Extend the draft of each request of the batch by a token per step, as long as its last token is sure."""
        growing = list(drafter.drafts)
        for _ in range(self.longest):
            # What comes back had room for a token; the others, at the end of their context, stay as they are.
            growing = drafter.extend(growing)
            growing = [draft for draft in growing if draft.tree.probability(draft.tree.last) >= self.sure]

    # A policy that learns defines two more: after each round `observe(self, verdicts)`, where a verdict's
    # `draft.request_id` names the request, and `len(path)` of its `len(submitted)` tokens were accepted; and
    # `forget(self, request_id)`, when a request has ended. `python -m pydoc specbench_kit.decoding.policy.Policy`
    # and `specbench_kit.decoding.verification.Verdict` say everything that a policy is given and may return.
'''

TEST = '''\
"""Tests of $name on the bundled pair."""

import pytest
import specbench_kit.api as skit
from specbench_kit.api.testing import check_method
from specbench_kit.core.errors import SkitError

LONGEST = 3


def test_it_loses_nothing_with_any_drafter_and_at_the_end_of_the_context():
    check_method("$name")


def test_$module(tmp_path):
    options = {"target": "bundled", "limit": 2, "max_new_tokens": 12, "out": tmp_path, "deployment": "wan"}
    result = skit.bench("$name:longest=3", **options)
    table = result.to_pandas().set_index("method")
    row = next(row for name, row in table.iterrows() if name.startswith("$name"))
    assert row["lossless_errors"] == 0
    assert 0 < row["drafted"] <= LONGEST * row["rounds"]


def test_a_longest_draft_of_no_token_is_refused():
    with pytest.raises(SkitError, match="longest must be at least 1"):
        skit.bench("$name:longest=0")
'''


def new_method(name: str, out: Path) -> Path:
    """Write the package into a new folder `skit-NAME` below `out`; return the folder.

    Raise SkitError if the name is taken or cannot be the name of a method.
    """
    from specbench_kit.methods.base import methods

    if not NAME.fullmatch(name):
        raise SkitError(
            f"'{name}' cannot be a method's name: use lower-case letters, digits and single dashes, as in my-rule"
        )
    if name in methods.all():
        raise SkitError(f"a method '{name}' exists already: choose another name")
    folder = out / f"skit-{name}"
    if folder.exists():
        raise SkitError(f"{folder} exists already: choose another --out")
    kind = "".join(part.capitalize() for part in name.split("-"))
    values = {"name": name, "module": f"skit_{name.replace('-', '_')}", "kind": kind}
    files = {
        "pyproject.toml": PROJECT,
        f"{values['module']}.py": METHOD,
        f"test_{values['module']}.py": TEST,
    }
    for file, text in files.items():
        write_text(folder / file, Template(text).substitute(values))
    return folder
