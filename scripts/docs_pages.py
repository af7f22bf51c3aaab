"""Generate documentation pages from the code; MkDocs calls `on_files` when it builds the site."""

import inspect
import re
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from mkdocs.structure.files import File, Files

import specbench_kit.api as api
from specbench_kit.cli.command import NOT_IN_FILES
from specbench_kit.cli.commands import commands
from specbench_kit.cli.group import load_command
from specbench_kit.core.plain_text import summary_of
from specbench_kit.core.specs import init_fields
from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS
from specbench_kit.reports.document import code
from specbench_kit.reports.render_markdown import table
from specbench_kit.studies.interchange.schemas import formats, json_schema, object_tables
from specbench_kit.studies.suite.run import kit_board


def other_names() -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the titles and the rows of the table of other tools' names, which stands beside this file."""
    script = runpy.run_path(str(Path(__file__).with_name("other_names.py")))
    return script["SOURCES"], script["OTHER_NAMES"]


_DOCSTRINGS = runpy.run_path(str(Path(__file__).with_name("policy_page.py")))
_text: Callable[[str], str] = _DOCSTRINGS["text_of"]
_function: Callable[[str, Callable[..., Any]], str] = _DOCSTRINGS["function_page"]
_class: Callable[[str, type], str] = _DOCSTRINGS["class_page"]

PAYS = {
    "bounds": "References: the cost without speculation, and the bound that no method can beat.",
    "static": "Pays off where acceptance is even; it is also the reference that any smarter rule has to beat.",
    "stop-rule": "Pays off where acceptance differs from token to token: any fixed length is too long or too short.",
    "learned": "Pays off where a predictor tells rejected tokens better than the draft model's own confidence does.",
    "latency-aware": "Pays off in batches and over links, where the cost of a token changes from round to round.",
    "bandit": "Pays off where the best rule is not known beforehand and answers are long enough to learn it.",
    "tree": "Pays off where the target verifies many tokens in little more time than one.",
    "overlapping": "Pays off where drafting and verifying have devices of their own, which would wait for each other.",
    "draft-free": "Pays off where answers repeat their prompts or each other, and where there is no draft model.",
}
"""When the methods of a group pay off; other groups say it in the methods' own texts."""
TITLES = {
    "stop-rule": "stop-rule: early exit by a stopping criterion",
    "draft-free": "draft-free: n-gram look-up and retrieval",
    "overlapping": "overlapping: drafting ahead during verification",
}
"""Headings of groups whose names are not the field's words; `--method group:NAME` takes the name."""
EVERYWHERE = {
    "drafter": "Source of the draft tokens: `model`, `best-of`, `cascade`, `first-of`, `head`, `suffix` or others.",
    "link": "Whether the link counts as a part of a round.",
    "proposal": "`drawn` draws draft tokens from the draft model's distribution, `top` takes the most probable ones.",
    "k": "Number of drafted tokens.",
    "max_draft": "Largest number of drafted tokens.",
    "predictor": "`auto` for the newest recommended predictor of the pair, or a name of `skit list predictors`.",
    "force": "Use a predictor of another pair.",
    "temperature": "Temperature of the draft model's distribution.",
    "stages": "Number of pipeline stages of the target.",
    "width": "Nodes of one tree level.",
    "branching": "Children of a node at each depth, joined by -.",
    "budget": "Nodes of a tree.",
    "threshold": "Limit of the quantity by which the method stops, as its text says.",
    "factor": "Factor on the entropy below the square root.",
    "arms": "Methods to choose from, joined by +; `k=1..4` stands for four of them.",
    "algorithm": "`ucb`: upper confidence bounds; `exp3`: weights that are drawn from.",
    "delta": "Probability with which a confidence bound may be wrong.",
    "sizes": "Largest batch of each entry of the table, joined by -.",
    "chunk": "Tokens of a prompt that one step takes.",
    "beams": "Nodes of a level that are grown further.",
    "depth": "Levels of the tree; `auto` chooses by the latencies.",
    "branch": "Children that are considered below a node.",
    "tree": "`tree` or `chain`: the shape of the draft.",
    "proactive": "Whether tokens are drafted ahead during verification.",
    "proactive_depth": "Levels that are drafted ahead.",
    "proactive_type": "Whether the levels drafted ahead shorten the next round (`included`) or not (`excluded`).",
}
"""Meanings of options that several methods have, for methods whose texts do not name them."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to those of the folder."""
    for path, text in (*pages(), *board()):
        files.append(File.generated(config, path, content=text))
    return files


def board() -> Iterator[tuple[str, str]]:
    """Yield the path and the HTML of every page of the board of the kit's own policies."""
    return ((f"board/{path}", page) for path, page in kit_board("v1"))


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every page."""
    entries = methods.all()
    yield "methods/groups.md", _overview(entries)
    for name, method in entries.items():
        yield f"methods/{name}.md", _method(name, method)
    yield "metrics.md", _metrics()
    yield "python.md", _python()
    yield "commands.md", _commands()
    yield "formats.md", _formats()


def _overview(entries: dict[str, Any]) -> str:
    parts = ["# Methods by group"]
    for group in GROUPS:
        rows = [
            (f"[{code(name)}]({name}.md)", _first(method))
            for name, method in entries.items()
            if method.group == group
        ]
        if rows:
            heading = f"## {TITLES.get(group, group)}"
            parts.append(
                "\n\n".join(
                    filter(None, [heading, PAYS.get(group, ""), table(["name", "rule"], rows)])
                )
            )
    return "\n\n".join(parts) + "\n"


def _method(name: str, method: Any) -> str:
    doc = inspect.getdoc(method) or ""
    options = [
        (
            code(f"{option.name}={_written(option.default)}"),
            type_in_words(option.type),
            meaning(option.name, doc),
        )
        for option in init_fields(method)
    ]
    parts = [f"# {name}", _text(inspect.getdoc(method) or "")]
    parts.append(f"Group: {method.group}. {PAYS.get(method.group, '')}".strip())
    parts.append(f"Source: {method.source}." if method.source else "")
    parts.append(f"Reported there: {method.reported_result}." if method.reported_result else "")
    needs = method.requirements()
    parts.append(f"Needs {'; '.join(needs)}." if needs else "")
    parts.append(
        "## Options\n\n" + table(["default", "type", "meaning"], options)
        if options
        else "It has no options."
    )
    parts.append(f"```sh\nskit bench --method {name} --limit 20\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def _written(default: Any) -> str:
    """Return a default as it is written behind the name of an option."""
    if isinstance(default, bool):
        return str(default).lower()
    return "+".join(map(str, default)) if isinstance(default, tuple) else str(default)


def type_in_words(kind: Any) -> str:
    """Return the values that an option takes: `a number or auto` rather than a Python type."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"several of: {type_in_words(get_args(kind)[0])}, with + between them"
    if get_args(kind) and get_origin(kind) is not Annotated:
        return " or ".join(
            type_in_words(member) for member in get_args(kind) if member is not NoneType
        )
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def meaning(option: str, doc: str) -> str:
    """Return the first sentence of a method's text that names the option, else what it means in every method."""
    sentences = re.split(r"(?<=[.;])\)?\s+", " ".join(doc.split()))
    named = re.compile(rf"`{option}(`|[=.])")
    named_in = next((sentence for sentence in sentences if named.search(sentence)), "")
    return named_in.rstrip(";") or EVERYWHERE.get(option, "")


def _metrics() -> str:
    rows = [(code(metric.name), metric.unit, metric.definition) for metric in METRICS]
    names = ", ".join(code(one.name) for one in DISTRIBUTIONS)
    return (
        "# Metrics\n\nEach has one definition, in `metrics/vocabulary.py`.\n\n"
        f"{table(['name', 'unit', 'definition'], rows)}\n\n"
        f"Distributions, with mean, p50, p95 and p99 in seconds: {names}.\n\n"
        "## The same quantities elsewhere\n\nWhere a word means another thing than here, its definition stands beside "
        f"it.\n\n{table(*other_names())}\n"
    )


def _python() -> str:
    parts = [
        "# Python reference",
        inspect.getdoc(api) or "",
        "```python\nimport specbench_kit.api as skit\n```",
    ]
    for name in sorted(api.__all__):
        member = getattr(api, name)
        parts.append(
            _function(name, member) if inspect.isfunction(member) else _class(name, member)
        )
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    parts = [
        "# Commands",
        "Every command takes `--config` and `--save-config`; `skit COMMAND --help` shows the options that matter "
        "first, `--help-all` all of them, and `--help=link` those whose heading, name or meaning has the word.",
    ]
    for name in sorted(commands.all()):
        command = load_command(name)
        options = [_command_option(command, parameter) for parameter in command.params]
        parts.append(f"## skit {name}\n\n{_text(command.help or '')}")
        if commands.get(name).example:
            parts.append(f"```sh\n{commands.get(name).example}\n```")
        parts.append(table(["option", "value", "default", "meaning"], list(filter(None, options))))
    return "\n\n".join(parts) + "\n"


def _command_option(command: Any, parameter: Any) -> tuple[str, str, str, str] | None:
    """Return an option, the kind of its value, its default and its meaning; None for those of every command."""
    if parameter.name in NOT_IN_FILES or parameter.name not in command.options:
        return None
    default = parameter.show_default
    return (
        code(" ".join(parameter.opts) or parameter.name),
        command.options[parameter.name].value_name,
        code(default) if isinstance(default, str) and default else "",
        (parameter.help or "").replace("\n", " "),
    )


def _formats() -> str:
    parts = [
        "# File formats",
        "The types with which the kit reads its files; `skit schema NAME` prints them as JSON Schema. A question mark "
        "stands behind fields that may be missing. Fields that are not listed are passed over.",
    ]
    shown: set[str] = set()
    for name, summary in formats().items():
        parts.append(f"## {name}\n\nThis is {_text(summary)}.")
        for part in object_tables(json_schema(name)):
            if part.title in shown:  # an object that another format has as well
                continue
            shown.add(part.title)
            # Fields without a description of their own are explained in the description of their object.
            width = 3 if any(row.description for row in part.rows) else 2
            rows = [
                (code(row.name), _text(row.kind), _text(row.description))[:width]
                for row in part.rows
            ]
            fields = table(["field", "type", "meaning"][:width], rows)
            parts.append(f"### {name}: {part.title}\n\n{_text(part.description)}\n\n{fields}")
    return "\n\n".join(parts) + "\n"


def _first(method: Any) -> str:
    return _text(summary_of(method))
