"""Write docs/policies.md, the reference of what a policy may define and is given, from the docstrings of the code.

`make policy-page` runs it, and a test compares the page with the docstrings.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from specbench_kit.api.testing import check_method
from specbench_kit.decoding.distributions import DistributionStats, DraftForward, NodeStats
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.methods.base import Chains, Child, LevelPolicy, Method, Policy, StopRule
from specbench_kit.reports.document import code

PAGE = Path(__file__).parents[1] / "docs" / "policies.md"
FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
OF_POLICIES: Mapping[type, Sequence[str]] = {
    Policy: (),
    Drafter: ("drafts", "room", "extend", "expand", "clock", "awaits_answer"),
    Draft: ("tree", "request_id", "context_length", "reference"),
    TokenTree: (
        *(
            "tokens",
            "parents",
            "drafted",
            "last",
            "path",
            "below",
            "depth",
            "deepest",
            "add",
            "probability",
            "stats",
        ),
        *("distribution_stats", "path_probability", "score"),
    ),
    DistributionStats: (),
    NodeStats: (),
    DraftForward: ("probabilities", "top_tokens", "likeliest"),
    Verdict: ("draft", "submitted", "path", "bonus", "tokens"),
    StopRule: (),
    Chains: (),
    LevelPolicy: (),
    Child: ("parent", "token", "score"),
    Method: ("policy", "drafting", "requirements"),
}
"""The classes that the author of a policy meets, each with the parts that are for policies; all of them if empty."""


def page() -> str:
    """Return the worked examples, and what a policy may define, is given and may return."""
    parts = [Path(__file__).with_name("policy_reference.md").read_text(encoding="utf-8").rstrip()]
    parts += [class_page(kind.__name__, kind, names) for kind, names in OF_POLICIES.items()]
    return "\n\n".join([*parts, function_page("check_method", check_method)]) + "\n"


def function_page(name: str, function: Callable[..., Any], level: str = "##") -> str:
    """Return a function's signature and docstring below a heading."""
    signature = str(inspect.signature(function)).replace("specbench_kit.", "")
    return f"{level} {name}\n\n```python\n{name}{signature}\n```\n\n{text_of(inspect.getdoc(function) or '')}"


def class_page(name: str, kind: type, names: Sequence[str] = ()) -> str:
    """Return a class with its fields, functions and properties, or with those of some names."""
    parts = [f"## {name}", text_of(inspect.getdoc(kind) or "")]
    own = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if shown := [code(field) for field in own if not names or field in names]:
        parts.append(f"Fields: {', '.join(shown)}.")
    for key in names or vars(kind):
        value = inspect.getattr_static(kind, key, None)
        if key.startswith("_"):
            continue
        if inspect.isfunction(value):
            parts.append(function_page(key, value, "###"))
        elif isinstance(value, property):
            parts.append(f"### {key}\n\n{text_of(inspect.getdoc(value) or '')}")
    return "\n\n".join(parts)


def text_of(text: str) -> str:
    """Return text of the code with escaped tags, and its examples as they are."""
    parts = FENCED.split(text)
    return "".join(part if part.startswith("```") else part.replace("<", "&lt;") for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
