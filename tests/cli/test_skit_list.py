"""`skit list`, and what the command line imports before it has work to do."""

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_line import environment, error_line, skit, skit_here
from plug_ins import of_the_kit, only_plug_ins_of
from typer.testing import CliRunner

from specbench_kit.cli.commands import commands
from specbench_kit.cli.group import load_command
from specbench_kit.cli.listing import SLOW, kinds
from specbench_kit.cli.main import app
from specbench_kit.datasets.base import datasets
from specbench_kit.decoding.drafting.base import drafters
from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.loading import load
from specbench_kit.live.engines.base import dialects, engines
from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.models.named import NAMED_PAIRS

HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "pandas",
    "matplotlib",
    "sklearn",
    "scipy",
    "numpy",
    "huggingface_hub",
}


def listed(*arguments: str) -> Any:
    done = skit_here("list", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_methods_are_listed_with_their_options() -> None:
    entries = {entry["name"]: entry for entry in listed("methods")}
    assert set(entries) == set(methods.all())
    assert entries["fixed-k"] == {
        "name": "fixed-k",
        "summary": "Draft exactly `k` tokens, then verify them.",
        "source": "Leviathan et al. 2023",
        "options": {"k": 4, "drafter": "model", "proposal": "sample"},
        "group": "static",
        "needs": [],
    }
    groups = {name: entry["group"] for name, entry in entries.items()}
    assert list(groups.values()) == sorted(groups.values(), key=GROUPS.index)
    own = of_the_kit(methods).keys()
    assert {name for name in own if groups[name] == "other"} == set(), "methods that set no group"
    assert {groups[name] for name in own} == set(GROUPS) - {"other"}
    assert entries["svip"]["needs"] == ["a drafter that gives statistics"]
    assert "skit measure-ranks" in entries["sequoia"]["needs"][-1]
    assert all(entries[name]["summary"] for name in own)


def test_all_kinds_of_servers_are_listed_with_the_commands_that_take_them() -> None:
    groups = {entry["name"].partition("://")[0]: entry["group"] for entry in listed("engines")}
    assert set(groups) == {*engines.all(), *dialects.all()}
    assert groups["llama-cpp"].startswith("for skit bench --server")
    assert groups["llama-cpp-chat"] == "for skit ab alone"


def test_drafters_are_listed_with_their_options_and_what_they_give() -> None:
    entries = {entry["name"]: entry for entry in listed("drafters")}
    assert set(entries) == set(drafters.all())
    assert entries["slem"] == {
        "name": "slem",
        "summary": "The draft model's most likely text, split into tokens of the target; verified by matching.",
        "options": {"settled": 1},
        "gives": "tokens",
    }
    assert "verified by matching. (settled=1) Gives tokens." in " ".join(
        skit_here("list", "drafters").stdout.split()
    )


def test_datasets_are_listed_with_their_places() -> None:
    entries = {entry["name"]: entry for entry in listed("datasets")}
    assert set(entries) == set(datasets.all())
    assert entries["gsm8k"]["local"] == "gsm8k/test.jsonl"
    assert entries["gsm8k"]["hub"] == "openai/gsm8k"


def test_devices_are_listed_with_bandwidth_and_memory() -> None:
    rows = {row["name"]: row for row in json.loads(skit("list", "devices", "--json").stdout)}
    assert rows["snapdragon-8-gen-3"]["summary"] == "phone with Snapdragon 8 Gen 3: 77 GB/s, 12 GB"
    assert rows["jetson-agx-orin-64"]["peak_tflops"] == {
        "float32": 5.3,
        "float16": 42.5,
        "bfloat16": 42.5,
    }
    assert "Qualcomm" in rows["snapdragon-8-gen-3"]["note"]


def test_models_are_listed_with_folders_that_hold_models() -> None:
    entries = listed("models")
    assert [entry["name"] for entry in entries] == [*NAMED_PAIRS, "bundled"]
    for entry in entries:
        assert {"name", "target", "draft"} <= set(entry)
    for entry in (entry for entry in entries if entry["here"]):
        assert all((Path(entry[role]) / "config.json").is_file() for role in ("target", "draft"))
    assert entries[-1]["here"]


def test_without_a_kind_every_name_is_listed_in_as_few_lines_as_hold_them_and_no_description() -> (
    None
):
    everything = listed()
    assert everything == {kind: listed(kind) for kind in kinds() if kind not in SLOW}
    lines = skit("list", env=environment(COLUMNS="80")).stdout.splitlines()
    assert len([line for line in lines if not line.startswith("  ")]) == len(everything) + 1
    for line, following in pairwise(lines):
        if line.startswith("  ") and following.startswith("  "):
            # The first name of a line had no room behind those of the line before it.
            assert len(line) <= 80 < len(f"{line} {following.split()[0]}")
    shown = " ".join(lines).replace(",", "").split()
    for kind, entries in everything.items():
        assert f"{kind} ({len(entries)})" in lines
        assert {entry["name"] for entry in entries} <= set(shown)
    assert everything["methods"][0]["summary"] not in " ".join(lines)
    assert lines[-1].startswith("skit list KIND describes them")


def test_a_narrow_terminal_cuts_nothing_off() -> None:
    table = skit("list", "methods", env=environment(COLUMNS="60")).stdout
    assert "…" not in table
    assert "unit=request" in "".join(table.split())


def test_the_fields_of_a_deployment_are_listed_as_options_that_change_them() -> None:
    listed = json.loads(skit("list", "deployments", "phone", "--json").stdout)
    fields = {field["name"]: field for field in listed}
    rtt = {
        "name": "link.rtt_s",
        "value": 0.05,
        "unit": "s, or as in 40ms",
        "option": "--set link.rtt_s=0.05",
    }
    assert fields["link.rtt_s"] == rtt
    assert (
        fields["drafter.device"]["option"] == "--set 'drafter.device=phone with Snapdragon 8 Gen 3'"
    )
    assert all(field["unit"] for field in listed)
    # Every field that has a value may be given that value again, without a change.
    given = [shlex.split(field["option"])[1] for field in listed if field["value"] is not None]
    assert describe_time(load("phone", given)) == describe_time(load("phone"))
    lines = skit("list", "deployments", "phone").stdout.splitlines()
    phone = load("phone")
    assert phone is not None
    step_s, verify_s = (
        phone.drafter.latency.seconds(((1, 512),)),
        phone.verifier.latency.seconds(((5, 512),)),
    )
    assert lines[0].startswith(f"phone: {phone.description.rstrip('.')}. ")
    assert lines[0].endswith(
        f" {1e3 * step_s:.1f} ms per drafted token, {1e3 * verify_s:.1f} ms per verification of 5 tokens (after 512 "
        "tokens, alone)."
    )
    shown = " ".join(" ".join(lines).split())
    assert "--set link.rtt_s=0.05 s, or as in 40ms" in shown
    assert error_line(skit("list", "deployments", "phonee")).startswith(
        "unknown deployment 'phonee' (did you mean 'phone'?)"
    )


def test_one_entry_of_any_kind_is_listed_alone() -> None:
    (entry,) = json.loads(skit("list", "methods", "fixed-k", "--json").stdout)
    assert entry["options"]["k"] == 4
    line = error_line(skit("list", "methods", "fixdk"))
    assert line.startswith(
        "no 'fixdk' among the methods (did you mean 'fixed-k'?); skit list methods shows all "
    )


def test_an_unknown_kind_is_refused() -> None:
    line = error_line(skit("list", "modelz"))
    assert (
        line
        == f"nothing to list under 'modelz' (did you mean 'models'?); known: {', '.join(kinds())}"
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["bench", "--help"], ["list"], ["list", "--json"]]
)
def test_nothing_heavy_is_imported_before_there_is_work(arguments: list[str]) -> None:
    assert imported_by(*arguments) & HEAVY == set()


def test_only_the_command_that_is_run_is_imported() -> None:
    help_of_all, listing = imported_by("--help"), imported_by("list")
    frame = (
        "commands",
        "exit_codes",
        "group",
        "interrupts",
        "main",
        "outputs",
        "own_commands",
        "usage",
    )
    mine = {f"specbench_kit.cli.{name}" for name in frame}
    assert {name for name in help_of_all if name.startswith("specbench_kit.cli.")} == mine
    of_studies = {name for name in help_of_all if name.startswith("specbench_kit.studies.")}
    assert {name.split(".")[3] for name in of_studies if name.count(".") > 2} == {"commands"}
    assert "specbench_kit.cli.listing" in listing
    assert (
        listing & {"specbench_kit.studies.bench.command", "specbench_kit.studies.bench.settings"}
        == set()
    )
    of_typer = modules_after("import typer")  # older versions load rich by themselves
    assert (help_of_all | listing) & ({"rich", "pydantic", "http.client"} - of_typer) == set()


def test_help_says_of_each_command_what_the_command_says() -> None:
    help_text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for name in commands.all():
        first = load_command(name).help.partition("\n\n")[0]
        assert first == commands.get(name).summary
        assert f" {name} {' '.join(first.split())}" in help_text


def imported_by(*arguments: str) -> set[str]:
    """Every module that a command had loaded when it ended."""
    return modules_after(
        f"sys.argv = ['skit', *{arguments}]\n"
        "from specbench_kit.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code"
    )


def modules_after(code: str) -> set[str]:
    """Every module that a new process has loaded after this code."""
    code = f"import sys\n{only_plug_ins_of()}{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    return set(done.stderr.split())
