"""Pages of the documentation that are made from the code; MkDocs calls `on_files` when it builds."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mkdocs.structure.files import File, Files

import specbench_kit.api as api
from specbench_kit.cli.commands import COMMANDS, load_command
from specbench_kit.core.specs import init_fields
from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, METRICS
from specbench_kit.reports.writing.markup import code, table

PAYS = {
    "bounds": "References: what nothing costs, and what cannot be beaten.",
    "static": "Pays where acceptance is even, and as the reference that a cleverer rule has to beat.",
    "stop-rule": "Pays where acceptance differs from token to token: a fixed length is too long here, too short there.",
    "learned": "Pays where a predictor tells rejected tokens better than the draft model's own confidence does.",
    "latency-aware": "Pays in batches and beyond links, where a token's price changes from round to round.",
    "bandit": "Pays where the best rule is not known beforehand and answers are long enough to learn it.",
    "tree": "Pays where the target verifies many tokens in little more time than one.",
    "overlapping": "Pays where drafting and verifying have devices of their own, which would wait for each other.",
    "draft-free": "Pays where answers repeat their prompts or each other, and where there is no draft model.",
}
"""By group, when its methods pay; the others say it themselves."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages to those of the folder."""
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> Iterator[tuple[str, str]]:
    """Every page by its path."""
    found = methods.all()
    yield "methods/groups.md", _overview(found)
    for name, method in found.items():
        yield f"methods/{name}.md", _method(name, method)
    yield "metrics.md", _metrics()
    yield "python.md", _python()
    yield "commands.md", _commands()


def _overview(found: dict[str, Any]) -> str:
    parts = ["# Methods by group"]
    for group in GROUPS:
        rows = [(f"[{code(name)}]({name}.md)", _first(one)) for name, one in found.items() if one.group == group]
        if rows:
            parts.append("\n\n".join(filter(None, [f"## {group}", PAYS.get(group, ""), table(["name", "rule"], rows)])))
    return "\n\n".join(parts) + "\n"


def _method(name: str, method: Any) -> str:
    options = [(code(f"{one.name}={one.default}"), inspect.formatannotation(one.type)) for one in init_fields(method)]
    parts = [f"# {name}", _text(inspect.getdoc(method) or "")]
    parts.append(f"Group: {method.group}. {PAYS.get(method.group, '')}".strip())
    parts.append(f"Source: {method.source}." if method.source else "")
    parts.append(f"Reported there: {method.reported_result}." if method.reported_result else "")
    needs = method.requirements()
    parts.append(f"Needs {'; '.join(needs)}." if needs else "")
    parts.append("## Options\n\n" + table(["default", "type"], options) if options else "It has no options.")
    parts.append(f"```sh\nskit bench --method {name} --limit 20\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def _metrics() -> str:
    rows = [(code(metric.name), metric.unit, metric.definition) for metric in METRICS]
    names = ", ".join(map(code, DISTRIBUTIONS))
    return (
        "# Metrics\n\nEach has one definition, in `metrics/vocabulary.py`.\n\n"
        f"{table(['name', 'unit', 'definition'], rows)}\n\n"
        f"Distributions, with mean, p50, p95 and p99 in seconds: {names}.\n"
    )


def _python() -> str:
    parts = ["# Python reference", inspect.getdoc(api) or "", "```python\nimport specbench_kit.api as skit\n```"]
    for name in sorted(api.__all__):
        found = getattr(api, name)
        parts.append(_function(name, found) if inspect.isfunction(found) else _class(name, found))
    return "\n\n".join(parts) + "\n"


def _function(name: str, found: Callable[..., Any], level: str = "##") -> str:
    signature = str(inspect.signature(found)).replace("specbench_kit.", "")
    return f"{level} {name}\n\n```python\n{name}{signature}\n```\n\n{_text(inspect.getdoc(found) or '')}"


def _class(name: str, found: type) -> str:
    parts = [f"## {name}", _text(inspect.getdoc(found) or "")]
    for key, value in vars(found).items():
        if key.startswith("_"):
            continue
        if inspect.isfunction(value):
            parts.append(_function(key, value, "###"))
        elif isinstance(value, property):
            parts.append(f"### {key}\n\n{_text(inspect.getdoc(value) or '')}")
    return "\n\n".join(parts)


def _commands() -> str:
    parts = ["# Commands", "Every command takes `--config` and `--save-config`; `skit COMMAND --help` says the same."]
    for name in sorted(COMMANDS):
        command = load_command(name)
        options = [
            (code(" ".join(one.opts) or one.name), (getattr(one, "help", "") or "").replace("\n", " "))
            for one in command.params
            if one.name not in ("config", "save_config")
        ]
        parts.append(f"## skit {name}\n\n{_text(command.help or '')}\n\n{table(['option', 'meaning'], options)}")
    return "\n\n".join(parts) + "\n"


def _first(method: Any) -> str:
    return _text((method.__doc__ or "").strip().partition("\n")[0])


def _text(text: str) -> str:
    """Words of the code, in which no tag is one."""
    return text.replace("<", "&lt;")
