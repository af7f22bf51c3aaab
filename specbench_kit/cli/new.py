"""`skit new`: a package or a card of your own to start from."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import Option, OptionValues
from specbench_kit.core.registry import Registry
from specbench_kit.runs.folder import write_text

LIKE = "qwen3-8b"
"""The card that a new one starts from by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOptions:
    """The kind and name of what is written, and the folder for it."""

    kind: Annotated[
        Literal["method", "command", "metric", "card"],
        Option(
            "What to write: method, command, metric, or card (of an architecture or a device).",
            argument=True,
        ),
    ]
    name: Annotated[str, Option("Name of the method, command, metric or card.", argument=True)]
    like: Annotated[
        str,
        Option(
            "Architecture or device that a card starts from: a name from `skit list architectures`, of which "
            "eagle3:qwen3-8b may be one, or from `skit list devices`.",
        ),
    ] = LIKE
    out: Annotated[
        Path, Option("Folder in which the package's folder or the card's file is created.")
    ] = Path(".")


def new(options: NewOptions) -> None:
    """Write the package or the card, and print the next steps."""
    from rich.console import Console

    from specbench_kit.cli.common import say

    console = Console()
    if options.kind == "card":
        path, command = new_card(options.name, options.like, options.out)
        say(console, f"written: {path}")
        say(console, f"next: edit its numbers, each of which a comment explains, then: {command}")
        return
    require(
        options.like == LIKE,
        f"--like has no effect: a {options.kind} starts from one template; leave it out",
    )
    template = TEMPLATES[options.kind]
    folder = new_package(template, options.name, options.out)
    for file in sorted(folder.iterdir()):
        say(console, f"written: {file}")
    say(console, f"next: pip install --editable '{folder}[test]'")
    say(console, f"then: pytest {folder}")
    say(console, f"then: {template.then(options.name)}")


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

[project.entry-points."$group"]
$name = "$module:$entry"

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

COMMAND = '''\
"""skit $name: which methods of some runs were the fastest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.cli.commands import CommandEntry
from specbench_kit.cli.common import JsonOption, print_json
from specbench_kit.core.errors import require
from specbench_kit.core.option import Option

COMMAND = CommandEntry(
    "$module:run",  # imported when the command runs
    "Results",  # the heading in skit --help, one of its own or another
    "Print the fastest methods of some runs.",
    example="skit $name results",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ${kind}Options:
    """Every annotated field is an option, or an argument."""

    runs: Annotated[tuple[Path, ...], Option("Folders of runs of skit bench.", argument=True)]
    most: Annotated[int, Option("Number of methods to print.")] = 3

    def __post_init__(self) -> None:
        require(self.most >= 1, f"--most must be at least 1, not {self.most}")


def run(options: ${kind}Options, as_json: JsonOption = False) -> None:
    """Print a line for each method, the fastest first."""
    # skit --help imports this file: what is heavy is imported where it is used.
    import specbench_kit.api as skit

    speed = skit.load(*options.runs).to_pandas().set_index("method")["throughput_tok_per_s"]
    fastest = speed.sort_values(ascending=False)
    shown = fastest.head(options.most).to_dict()
    if as_json:
        print_json(shown)
        return
    for method, tokens_per_s in shown.items():
        print(f"{method}: {tokens_per_s:.1f} tokens/s")
'''

COMMAND_TEST = '''\
"""Tests of skit $name on runs of the bundled pair."""

from pathlib import Path

import pytest
import specbench_kit.api as skit
from specbench_kit.core.errors import SkitError

from $module import ${kind}Options, run


def test_$module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"target": "bundled", "limit": 2, "max_new_tokens": 12, "out": tmp_path, "deployment": "wan"}
    skit.bench("fixed-k", **options)
    run(${kind}Options(runs=(tmp_path,), most=1))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("fixed-k")


def test_no_method_at_all_is_refused() -> None:
    with pytest.raises(SkitError, match="--most must be at least 1"):
        ${kind}Options(runs=(Path(),), most=0)
'''

METRIC = '''\
"""$name: how many drafts were right to their end."""

from collections.abc import Sequence

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.added import AddedMetric


class $kind(AddedMetric):
    """The share of drafts that the target accepted to their end."""

    title = "$name"  # the title of its column
    definition = "drafts that the target accepted to their end / drafts"
    unit = "share"  # or number, count, tokens, times, seconds, rate
    better = "higher"

    def of(self, records: Sequence[RequestRecord]) -> float | None:
        # A request's `rounds` say what was drafted, submitted, accepted and committed, and what each phase took:
        # python -m pydoc specbench_kit.decoding.records.RoundRecord
        drafts = [each for record in records for each in record.rounds if each.submitted]
        whole = sum(each.accepted == each.submitted for each in drafts)
        return whole / len(drafts) if drafts else None
'''

METRIC_TEST = '''\
"""Tests of $name on the bundled pair, once its package is installed."""

from pathlib import Path

import specbench_kit.api as skit


def test_$module(tmp_path: Path) -> None:
    options = {"target": "bundled", "limit": 2, "max_new_tokens": 12, "out": tmp_path, "deployment": "wan"}
    table = skit.bench(["fixed-k:k=1", "fixed-k:k=4"], **options).to_pandas().set_index("spec")
    assert 0 <= table.loc["fixed-k:k=4", "$name"] <= table.loc["fixed-k:k=1", "$name"] <= 1
'''


@dataclass(frozen=True, slots=True)
class PackageTemplate:
    """What `skit new` writes for a kind of part: its module, the test and the name in the module that
    the entry point names.
    """

    registry: Callable[[], Registry[Any]]
    module: str
    test: str
    entry: str
    then: Callable[[str], str]
    """Return a command that uses the part of a name."""


def _methods() -> Registry[Any]:
    from specbench_kit.methods.base import methods

    return methods


def _commands() -> Registry[Any]:
    from specbench_kit.cli.commands import commands

    return commands


def _metrics() -> Registry[Any]:
    from specbench_kit.metrics.added import added_metrics

    return added_metrics


TEMPLATES = {
    "method": PackageTemplate(
        _methods,
        METHOD,
        TEST,
        "$kind",
        lambda name: (
            f"skit bench --replay qwen2.5-coder --deployment wan --method {name} --method fixed-k"
        ),
    ),
    "command": PackageTemplate(
        _commands,
        COMMAND,
        COMMAND_TEST,
        "COMMAND",
        lambda name: f"skit {name} --help",
    ),
    "metric": PackageTemplate(
        _metrics,
        METRIC,
        METRIC_TEST,
        "$kind",
        lambda _: (
            "skit bench --replay qwen2.5-coder --deployment wan --method fixed-k --method svip"
        ),
    ),
}
"""The packages that `skit new` writes, by the kind of part that they bring."""

ARCHITECTURE_COMMENTS = {
    "family": "the model type of its configuration, or llama for any plain decoder",
    "hidden_size": "width of the hidden state",
    "layers": "number of layers of all kinds",
    "heads": "query heads of a layer",
    "kv_heads": "heads of keys and values; 1 with latent attention",
    "head_dim": "numbers per head, without the rotary part of latent attention",
    "intermediate_size": "inner size of the dense feed-forward layers",
    "vocabulary": "words of the output layer",
    "tied": "true if the embeddings are the output layer",
    "max_positions": "longest context in tokens",
    "experts": "experts of a mixture; all layers but dense_layers have them",
    "active_experts": "experts that a token goes to",
    "expert_size": "inner size of an expert",
    "shared_expert_size": "inner size of the expert that every token goes to",
    "dense_layers": "layers without experts",
    "latent_rank": "numbers that latent attention caches per token, without the rotary key",
    "rope_dim": "numbers of the rotary key of latent attention",
    "value_dim": "numbers of a value per head of latent attention",
    "query_rank": "inner size of the projection of queries",
    "window": "tokens that layers with a window attend to",
    "windowed_layers": "layers with a window",
    "selected": "tokens that layers with sparse attention attend to",
    "sparse_layers": "layers with sparse attention",
    "index_layers": "layers with an indexer of their own, which selects tokens",
    "index_heads": "heads of an indexer",
    "index_dim": "numbers of an indexer's key",
    "linear_layers": "layers with linear attention, which have a state and no KV",
    "linear_key_heads": "heads of keys there",
    "linear_value_heads": "heads of values there, each with a state",
    "linear_key_dim": "numbers of a key there",
    "linear_value_dim": "numbers of a value there",
    "linear_convolution": "tokens that the convolution there covers",
    "gated_attention": "true if the output of attention has a gate as wide as the queries",
    "beside_layers": "weights of matrices beside the layers, such as the projections of a draft head",
    "borrowed_tables": "embeddings and output layer that are the target's: 0 to 2",
    "tokens_per_forward": "tokens that one forward drafts, for block drafters",
    "weight_bits": "bits of a weight with its scales, where it is quantised",
    "expert_bits": "bits of a weight of the experts, where they have others",
    "kv_bits": "bits of a number of KV, where it is quantised",
    "table_bits": "bits of a weight of embeddings and output layer, where they are quantised",
    "computed_in": "float8 or float4 if the layers' matrices are multiplied in it",
}
"""What each field of an architecture card is, for the file that is written."""
LARGE = 1e6
"""The number from which on a card's numbers are written with an exponent."""
DEVICE_COMMENTS = {
    "title": "name of the device in reports",
    "reported": "names by which a driver reports exactly this device",
    "memory_bytes": "memory in bytes",
    "bandwidth_bytes_per_s": "memory bandwidth in bytes per second",
    "peak_flops": "dense peaks in FLOP/s by float32, float16, bfloat16, float8, float4, as far as there are units",
    "power_w": "largest power draw in watts",
    "note": "where these numbers are from",
}
"""What each field of a device card is, for the file that is written."""


def new_card(name: str, like: str, out: Path) -> tuple[Path, str]:
    """Write a card that starts from the architecture or device `like`; return its file and a command
    that uses it.

    Raise SkitError if there is no such card, or the file exists.
    """
    from specbench_kit.profilers.cards import unknown_name
    from specbench_kit.profilers.devices import bundled_devices
    from specbench_kit.profilers.variants import find_architecture

    require(
        NAME.fullmatch(name.replace(".", "")) is not None,
        f"'{name}' cannot be a card's name: use lower-case letters, digits, dots and single dashes",
    )
    path = out / f"{name}.toml"
    require(not path.exists(), f"{path} exists already: choose another name or --out")
    device = next(
        (card for card in bundled_devices().values() if like.lower() in (card.name, *card.aliases)),
        None,
    )
    fields: OptionValues
    if device is not None:
        # The driver's names stay behind: they are those of the card that this one starts from.
        given = {field: getattr(device, field) for field in DEVICE_COMMENTS} | {"reported": ()}
        fields = {field: value for field, value in given.items() if value or field != "power_w"}
        kind, comments = "Device", DEVICE_COMMENTS
        command = f"skit profile-verifier --gpu {path} --target {LIKE}"
    elif shapes := find_architecture(like):
        fields, kind, comments = shapes.describe(), "Architecture", ARCHITECTURE_COMMENTS
        command = f"skit profile-verifier --gpu h100 --target {path}"
    else:
        raise unknown_name("architecture", like, [], ", or a device of `skit list devices`")
    write_text(path, _card_text(name, f"{kind} card, which started from {like}", fields, comments))
    return path, command


def _shown(value: object) -> str:
    """Return a value as TOML writes it, large numbers with an exponent."""
    import tomli_w

    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_shown(number)}' for key, number in value.items())} }}"
    if isinstance(value, float) and value >= LARGE:
        return f"{value:.6g}"
    return tomli_w.dumps({"value": value}).partition(" = ")[2].strip()


def _card_text(name: str, title: str, fields: OptionValues, comments: Mapping[str, str]) -> str:
    """Return a card in the form of the bundled ones, with what each field is."""
    lines = [f"# {title}", f'["{name}"]']
    lines += [f"{field} = {_shown(value)}  # {comments[field]}" for field, value in fields.items()]
    return "\n".join(lines) + "\n"


def new_package(template: PackageTemplate, name: str, out: Path) -> Path:
    """Write a package with one part of this name into a new folder `skit-NAME` below `out`; return the
    folder.

    Raise SkitError if the name is taken or cannot be the name of such a part.
    """
    registry = template.registry()
    if not NAME.fullmatch(name):
        raise SkitError(
            f"'{name}' cannot be a {registry.kind}'s name: use lower-case letters, digits and single dashes, as in "
            "my-rule"
        )
    if name in registry.all():
        raise SkitError(f"a {registry.kind} '{name}' exists already: choose another name")
    folder = out / f"skit-{name}"
    if folder.exists():
        raise SkitError(f"{folder} exists already: choose another --out")
    kind = "".join(part.capitalize() for part in name.split("-"))
    values = {"name": name, "module": f"skit_{name.replace('-', '_')}", "kind": kind}
    entry = Template(template.entry).substitute(values)
    files = {
        "pyproject.toml": PROJECT,
        f"{values['module']}.py": template.module,
        f"test_{values['module']}.py": template.test,
    }
    for file, text in files.items():
        written = Template(text).substitute(values, group=registry.group, entry=entry)
        write_text(folder / file, written)
    return folder
