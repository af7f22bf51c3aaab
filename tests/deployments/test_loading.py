"""Deployment files: what ships loads, one's own is found by path, fields can be replaced, and errors name the key."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT

from specbench_kit.cli.command import PRESETS
from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel, InteractionModel
from specbench_kit.deployments.description import describe, restore
from specbench_kit.deployments.fields import parse_value
from specbench_kit.deployments.loading import LIBRARY, LOCAL, bundled, entries, find, load
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_interconnect
from specbench_kit.profilers.loading import DERIVED, read
from specbench_kit.profilers.roofline import Roofline, judge, roofline_of
from specbench_kit.profilers.silicon import find_kernels
from specbench_kit.profilers.software import find_software
from specbench_kit.serving.options import ServingOptions
from specbench_kit.studies.planning.options import PlanOptions
from specbench_kit.studies.recording.record_command import RecordOptions

OWN = """
name = "mine"
description = "My board and my server."
source = "measured by me"

[drafter]
device = "board"
placement = "edge"
predictor_s = 1e-4

[drafter.coefficients]
form = "context"
alpha_s = 0
gamma_s = 1e-3
delta_s = 2e-3

[verifier]
device = "server"
profile = "profiles/server.toml"
price_per_hour = 2
stages = 4

[link]
rtt_s = 0.02
up_bytes_per_s = 1e6
seed = 3
"""
PROFILE = """
name = "server"
role = "verifier"
device = "rtx4090"
model = "qwen3-8b"
dtype = "bfloat16"
source = "measured"

[coefficients]
form = "interactions"
a_s = 1e-4
b_compute_s = 1e-9
b_read_s = 1e-7
c_s = 0.05
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "server.toml").write_text(PROFILE)
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    return file


def built(name: str, *replaced: str) -> Any:
    deployment = load(name, replaced)
    assert deployment is not None
    return deployment


@pytest.mark.parametrize("name", bundled())
def test_what_ships_loads_and_describes_itself(name: str) -> None:
    deployment = built(name)
    assert deployment.name == name
    assert deployment.description.endswith(".")
    described = json.loads(json.dumps(describe(deployment), allow_nan=False))
    for role in ("drafter", "verifier"):
        assert described[role]["latency"]["form"] in (
            "interactions",
            "context",
            "rounded",
            "kernels",
            "leaps",
        )
        assert getattr(deployment, role).latency.seconds([(1, 100)]) > 0
        assert described[role]["origin"]
        derived = any(
            f", {source}" in described[role]["origin"] for source in ("roofline", "silicon")
        )
        assert derived == ("stands for " in described[role]["origin"])


def test_the_deployments_of_the_papers_and_the_classes_of_edges_are_there() -> None:
    names = {
        "wisp",
        "specedge",
        "adaspec-l40",
        "adaspec-a100",
        "specpipe",
        "specpipe-10gbe",
        "raspberry-pi",
        "wan",
    }
    names |= {"phone", "jetson-orin"}
    assert names <= set(bundled())
    assert find("wan").sweep["link.rtt_s"]
    assert built("specpipe").verifier.stages == built("specpipe-10gbe").verifier.stages == 8
    assert {built(name).placement for name in ("adaspec-l40", "adaspec-a100", "specpipe")} == {
        "server"
    }


def test_published_numbers() -> None:
    for name, price, verification_s in (("specedge", 5.05, 0.0942), ("specedge-14b", 4.05, 0.06)):
        deployment = built(name)
        assert deployment.link.rtt_s == 0.01407
        assert deployment.verifier.latency.seconds([(9, 500), (9, 10)]) == verification_s
        assert deployment.drafter.latency.seconds([(32, 500)]) == 0.011
        assert (deployment.verifier.price_per_hour, deployment.drafter.price_per_hour) == (
            price,
            0.35,
        )
    wisp = built("wisp")
    assert wisp.drafter.latency.seconds([(1, 100)]) == 1 / 50
    assert wisp.verifier.latency.seconds([(1500, 0)]) == pytest.approx(0.142195)
    assert "IMPOSSIBLE" in wisp.verifier.origin
    assert "IMPOSSIBLE" not in built("wisp-roofline").verifier.origin


def test_a_second_server_adds_one_hand_over_of_hidden_states() -> None:
    single, two = (built(name).verifier for name in ("specpipe", "specpipe-10gbe"))
    hidden_bytes = bundled_architectures()["llama3.1-70b"].hidden_size * 2
    assert two.pass_s([(5, 300)]) - single.pass_s([(5, 300)]) == pytest.approx(
        5 * hidden_bytes / 1.25e9
    )


@pytest.mark.parametrize("path", sorted(DERIVED.glob("*.toml")), ids=lambda path: path.stem)
def test_derived_profiles_follow_from_the_data_sheets(path: Path) -> None:
    profile = read(path)
    roofline = roofline_of(profile)
    assert profile.name == path.stem
    assert "not measured" in profile.reference
    assert isinstance(roofline, Roofline)
    assert judge(profile).kind == "possible"
    if profile.source == "silicon":
        kernels = find_kernels(profile.model, profile.device, "vllm", profile.tensor_parallel)
        assert kernels is not None
        assert profile.kernels == kernels.kernels
        return
    over = find_interconnect("nvlink3") if profile.tensor_parallel > 1 else None
    estimate = roofline.estimate(find_software(profile.software), profile.tensor_parallel, over)
    assert profile.source == "roofline"
    assert estimate.coefficients == pytest.approx(profile.coefficients)


def test_local_is_this_machine() -> None:
    assert load(LOCAL) is None
    with pytest.raises(SkitError, match="choose one with --deployment"):
        load(LOCAL, ["link.rtt_s=1"])


def test_a_file_of_ones_own_with_a_profile_beside_it(own: Path) -> None:
    deployment = built(str(own))
    assert deployment.name == "mine"
    assert deployment.drafter.latency == ContextModel(0.0, 1e-3, 2e-3)
    assert deployment.verifier.latency == InteractionModel(1e-4, 1e-9, 1e-7, 0.05)
    assert (deployment.verifier.stages, deployment.verifier.price_per_hour) == (4, 2.0)
    assert (deployment.placement, deployment.predictor_s) == ("edge", 1e-4)
    described = describe(deployment)
    assert described["link"] == {
        "rtt_s": 0.02,
        "jitter_s": 0.0,
        "up_bytes_per_s": 1e6,
        "down_bytes_per_s": None,
        "seed": 3,
        "state_bytes": 0.0,
        "draft_bytes": 0.0,
        "loss": 0.0,
        "retry_s": 0.0,
    }


def test_fields_are_replaced(own: Path) -> None:
    deployment = built(
        str(own),
        "link.rtt_s=0.04",
        "link.down_bytes_per_s=2e6",
        "drafter.placement=server",
        "verifier.coefficients.c_s=0.1",
        "name=other",
    )
    assert deployment.link.rtt_s == 0.04
    assert deployment.link.down_bytes_per_s == 2e6
    assert deployment.placement == "server"
    assert deployment.verifier.latency == InteractionModel(1e-4, 1e-9, 1e-7, 0.1)
    assert deployment.name == "other"
    assert built(str(own)).link.rtt_s == 0.02


def test_profiles_and_coefficients_make_way_for_each_other(own: Path) -> None:
    deployment = built(str(own), "drafter.profile=specedge-draft", "verifier.profile=wisp-table-12")
    assert deployment.drafter.latency.seconds([(1, 10)]) == 0.011
    assert "wisp-table-12" in deployment.verifier.origin
    slower = built("specedge", "verifier.coefficients.a_s=1e-3")
    assert slower.verifier.latency.seconds([(5, 100)]) == pytest.approx(0.0942 + 5e-3)


def test_a_stage_time_that_leaps_with_every_tile_of_tokens() -> None:
    deployment = built("specpipe-published", "verifier.coefficients.leap_s=0.1")
    seconds = [deployment.verifier.latency.seconds([(new, 9)]) for new in (1, 64, 65, 128, 129)]
    assert seconds == pytest.approx([0.30239, 0.30239, 0.40239, 0.40239, 0.50239])
    assert restore(describe(deployment)) == deployment
    with pytest.raises(SkitError, match=r"coefficients: tile must be a number >= 1.0, not 0"):
        built("specpipe-published", "verifier.coefficients.tile=0")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.04", 0.04),
        ("3", 3),
        ("1e6", 1e6),
        ("true", True),
        ("edge", "edge"),
        ('"edge"', "edge"),
        ("[1]", "[1]"),
    ],
)
def test_values_are_read_as_toml_writes_them(text: str, value: object) -> None:
    assert parse_value("placement", text) == value


@pytest.mark.parametrize(
    ("text", "seconds"), [("40ms", 0.04), ("0.04s", 0.04), ("250us", 0.00025), ("0.04", 0.04)]
)
def test_seconds_may_be_given_with_their_unit(text: str, seconds: float) -> None:
    assert built("wan", f"link.rtt_s={text}").link.rtt_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "160", "10s"])
def test_a_round_trip_that_was_meant_in_milliseconds_is_refused(text: str) -> None:
    number = text.removesuffix("s")
    with pytest.raises(
        SkitError, match=rf"link\.rtt_s={text} is a round trip of {number} s: write {number}ms"
    ):
        built("wan", f"link.rtt_s={text}")


CHANGES = [
    ('name = "mine"\n', "", ": name is missing"),
    ('name = "mine"', "name = 3", "name must be text, not 3"),
    ("[link]", "[lnk]", "has unknown keys: lnk; known: name, description, source, drafter"),
    ("[link]", '[colocated]\nprofile = "specedge-draft"\n[link]', "[colocated]: device is missing"),
    ("rtt_s = 0.02", "rtt = 0.02", "[link] has unknown keys: rtt; known: rtt_s"),
    ("rtt_s = 0.02", "rtt_s = -0.02", "[link]: rtt_s must be a number >= 0.0, not -0.02"),
    ("rtt_s = 0.02", 'rtt_s = "20 ms"', '[link]: rtt_s must be a number, not "20 ms"'),
    ("rtt_s = 0.02", "rtt_s = nan", "[link]: rtt_s must be a number >= 0.0, not NaN"),
    (
        "up_bytes_per_s = 1e6",
        "up_bytes_per_s = 0",
        "[link]: up_bytes_per_s must be a number >= 1.0, not 0",
    ),
    ("seed = 3", "seed = 0.5", "[link]: seed must be a whole number, not 0.5"),
    ('device = "board"\n', "", "[drafter]: device is missing"),
    (
        'placement = "edge"',
        'placement = "cloud"',
        '[drafter]: placement must be "edge" or "server", not "cloud"',
    ),
    (
        "predictor_s = 1e-4",
        "predictor_s = true",
        "[drafter]: predictor_s must be a number or null, not true",
    ),
    ("gamma_s = 1e-3\n", "", "[drafter], coefficients: gamma_s is missing"),
    (
        "gamma_s = 1e-3",
        "gamma_s = -1",
        "[drafter], coefficients: gamma_s must be a number >= 0.0, not -1",
    ),
    (
        'form = "context"',
        'form = "cubic"',
        "[drafter], coefficients: form must be 'interactions' or 'context' or 'work'",
    ),
    (
        'profile = "profiles/server.toml"\n',
        "",
        "[verifier] needs a profile or a table of coefficients, and not both",
    ),
    ("profiles/server.toml", "nothing", "[verifier]: profile: unknown profile 'nothing'"),
    ("profiles/server.toml", "no.toml", "[verifier]: profile: cannot read"),
    (
        "price_per_hour = 2",
        'price_per_hour = "two"',
        '[verifier]: price_per_hour must be a number, not "two"',
    ),
    ("stages = 4", "stages = 0", "[verifier]: stages must be a whole number >= 1, not 0"),
    (
        "seed = 3",
        'seed = 3\n[sweep]\n"link.rtt_s" = 1',
        "[sweep]: link.rtt_s must be a list of values, not 1",
    ),
]


@pytest.mark.parametrize(
    ("before", "after", "line"), CHANGES, ids=[change[2] for change in CHANGES]
)
def test_errors_name_the_file_and_the_key(own: Path, before: str, after: str, line: str) -> None:
    own.write_text(OWN.replace(before, after))
    with pytest.raises(SkitError) as error:
        load(str(own))
    assert str(error.value).startswith(f"the deployment {own}")
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_replaced_fields_are_named_in_errors() -> None:
    with pytest.raises(
        SkitError,
        match=r"deployment wisp with link.rtt_s=-1, \[link\]: rtt_s must be a number >= 0.0",
    ):
        load("wisp", ["link.rtt_s=-1"])


@pytest.mark.parametrize(
    ("name", "replaced", "line"),
    [
        (
            "wips",
            [],
            "unknown deployment 'wips' (did you mean 'wisp'?); skit list deployments shows all ",
        ),
        (
            "snapdragon-8-elite",
            [],
            "'snapdragon-8-elite' is a device and no deployment: skit profile-verifier --gpu snapdragon-8-elite ",
        ),
        ("no.toml", [], "cannot read no.toml: No such file"),
        (
            "wisp",
            ["link.rtt_s"],
            "--set needs a key and a value, as in link.rtt_s=0.04, not 'link.rtt_s'",
        ),
        ("wisp", ["name.first=1"], "--set name.first: name holds no fields"),
        ("wisp", ["lnk.rtt_s=1"], "the deployment wisp with lnk.rtt_s=1 has unknown keys: lnk"),
        ("wisp", ["link=1"], "the deployment wisp with link=1: link must be an object, not 1"),
    ],
)
def test_names_and_fields_that_are_not_there(name: str, replaced: list[str], line: str) -> None:
    with pytest.raises(SkitError) as error:
        load(name, replaced)
    assert str(error.value).startswith(line)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("name = ")
    with pytest.raises(SkitError, match="is not valid TOML"):
        load(str(file))


def test_the_list_starts_with_this_machine_and_says_what_is_modelled() -> None:
    first, *modelled = entries()
    assert (first["name"], first["time_kind"]) == (LOCAL, "measured")
    assert sorted(str(entry["name"]) for entry in modelled) == sorted(bundled())
    assert {entry["time_kind"] for entry in modelled} == {"modelled"}
    assert all(entry["source"] for entry in modelled)


def test_every_profile_that_ships_is_one_that_a_deployment_names_or_a_published_one() -> None:
    named = {
        table.get("profile")
        for definition in bundled().values()
        for table in (
            definition.content.get(role, {}) for role in ("drafter", "verifier", "colocated")
        )
    }
    assert {path.stem for path in DERIVED.iterdir()} <= named
    assert {path.suffix for path in LIBRARY.iterdir()} == {".toml"}


def test_deployments_that_no_device_reaches_come_last_and_nothing_chooses_them() -> None:
    listed = entries()
    assert [entry["name"] for entry in listed if "IMPOSSIBLE" in str(entry["summary"])] == ["wisp"]
    assert listed[-1]["name"] == "wisp"
    assert "Qwen3-32B" in str(listed[-1]["summary"])
    preset = tomllib.loads((PRESETS / "known-pair.toml").read_text(encoding="utf-8"))
    defaults = {
        field.name: field.default
        for options in (RecordOptions, ServingOptions)
        for field in fields(options)
    }
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    chosen = [
        preset["deployment"],
        *defaults["deployment"],
        next(field.default for field in fields(PlanOptions) if field.name == "deployment"),
        *defaults["trees_for"],
        *re.findall(r"--deployment ([\w.-]+)", makefile),
        *re.findall(r"^EDGES := (.*)$", makefile, re.MULTILINE)[0].split(),
        *re.findall(r"^PAIR_CLOCKS := (.*)$", makefile, re.MULTILINE)[0].split(),
    ]
    shipped = bundled()
    assert {"wan", "wisp-roofline", "raspberry-pi"} <= set(chosen)
    assert [
        name for name in chosen if name in shipped and shipped[name].build().is_impossible
    ] == []
