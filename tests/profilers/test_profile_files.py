"""Profiles on disk."""

import re
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch
from msgspec import structs, to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.loading import (
    DERIVED,
    PUBLISHED,
    all_profiles,
    data_folder,
    find_measured,
    load,
    read,
    save,
)
from specbench_kit.profilers.measurement import hardware_text
from specbench_kit.reports.sections.profiles import entries

HERE = hardware_text(torch.device("cpu"))
MINE = Profile(
    name="mine",
    role="drafter",
    device="cpu",
    model="some/model",
    dtype="float32",
    source="measured",
    form="context",
    coefficients={"alpha_s": 1e-7, "gamma_s": 0.0, "delta_s": 1e-3},
    date="2026-01-01T00:00:00+00:00",
    hardware=HERE,
    model_hash="a" * 64,
    cores=2,
    samples="mine.csv",
    fit={"test": {"r2": 0.97}, "skipped": ["memory-1-of-500-x4"]},
    policy={"statistics_s": 1e-5},
    architecture=bundled_architectures()["llama2-7b"],
    device_card=find_device("cpu"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    return data_folder()


def test_a_profile_survives_the_disk(tmp_path: Path) -> None:
    save(tmp_path / "p.toml", MINE)
    assert read(tmp_path / "p.toml") == MINE
    assert load(str(tmp_path / "p.toml")).latency() == ContextModel(1e-7, 0.0, 1e-3)
    published = load("wisp-section-4.4")
    save(tmp_path / "q.toml", published)
    assert read(tmp_path / "q.toml") == published
    assert published.not_given == ("c_s",)


def test_published_profiles_name_their_place_in_a_paper() -> None:
    for folder in (DERIVED, PUBLISHED):
        assert [path.stem for path in folder.glob("*.toml")] == [
            read(path).name for path in folder.glob("*.toml")
        ]
    for name, profile in all_profiles().items():
        if (PUBLISHED / f"{name}.toml").exists():
            assert isinstance(profile, Profile)
            assert profile.source == "published"
            assert re.search(r"202[56](, arXiv [0-9.]+)?\)", profile.reference), name
    assert load("specedge-verify").latency().seconds([(8, 500)] * 4) == 94.2e-3
    assert load("specedge-draft").latency().seconds([(1, 500)]) == 11e-3


def test_a_file_in_the_users_folder_is_a_profile_and_a_broken_one_harms_no_other(
    home: Path,
) -> None:
    save(home / "mine.toml", MINE)
    (home / "broken.toml").write_text("name = ")
    assert load("mine") == MINE
    with pytest.raises(SkitError, match=r"broken.toml is not valid TOML"):
        load("broken")
    listed = {entry["name"]: entry for entry in to_builtins(entries())}
    assert listed["mine"]["test_r2"] == 0.97
    assert "cannot be used" in listed["broken"]["summary"]
    assert listed["wisp-table-12"]["verdict"] == "impossible"
    assert "a 33.1 µs < 200 µs, c 14.9 ms < 31.4 ms" in listed["wisp-table-12"]["summary"]


def test_an_unknown_name_lists_the_known() -> None:
    named = r"unknown profile 'wisp-table-13' \(did you mean 'wisp-table-12'.*; skit list profiles shows all "
    with pytest.raises(SkitError, match=named):
        load("wisp-table-13")


def test_measured_profiles_are_found_by_weights_role_and_machine(home: Path) -> None:
    save(home / "old.toml", structs.replace(MINE, name="old"))
    save(home / "new.toml", structs.replace(MINE, name="new", date="2026-02-01T00:00:00+00:00"))
    save(
        home / "far.toml",
        structs.replace(
            MINE, name="far", hardware="another machine", date="2026-03-01T00:00:00+00:00"
        ),
    )
    save(
        home / "says.toml",
        structs.replace(MINE, name="says", source="roofline", date="2026-03-01T00:00:00+00:00"),
    )
    profile = find_measured("a" * 64, "drafter", "cpu")
    assert profile is not None
    assert profile.name == "new"
    assert find_measured("a" * 64, "drafter", "cpu", form="interactions") is None
    assert find_measured("a" * 64, "verifier", "cpu") is None
    assert find_measured("b" * 64, "drafter", "cpu") is None


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "p.toml", MINE)
    assert load(str(tmp_path / "p.toml"), model_hash="a" * 64) == MINE
    with pytest.raises(
        SkitError, match=r"measured with another model \(some/model\): profile this one with"
    ):
        load(str(tmp_path / "p.toml"), model_hash="b" * 64)


BAD = {
    "role": ("judge", 'role must be "drafter" or "verifier", not "judge"'),
    "source": ("guessed", 'source must be "calibrated" or "measured" or "published"'),
    "colour": ("red", "unknown keys: colour"),
    "coefficients.delta_s": (-1e-3, "delta_s must be a number >= 0.0, not -0.001"),
    "coefficients.alpha_s": (float("nan"), "alpha_s must be a number >= 0.0, not NaN"),
    "coefficients.form": ("cubic", r"form must be 'interactions' or 'context' or 'work'"),
    "coefficients.c_s": (1e-3, "unknown keys: c_s"),
}


@pytest.mark.parametrize("key", BAD)
def test_a_bad_profile_is_one_line(key: str, tmp_path: Path) -> None:
    save(tmp_path / "p.toml", MINE)
    content = tomllib.loads((tmp_path / "p.toml").read_text())
    value, problem = BAD[key]
    table, _, last = key.rpartition(".")
    (content[table] if table else content)[last] = value
    (tmp_path / "p.toml").write_text(tomli_w.dumps(content))
    with pytest.raises(SkitError, match=problem):
        read(tmp_path / "p.toml")


@pytest.mark.parametrize("key", ["model", "coefficients", "coefficients.gamma_s"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    save(tmp_path / "p.toml", MINE)
    content = tomllib.loads((tmp_path / "p.toml").read_text())
    table, _, last = key.rpartition(".")
    del (content[table] if table else content)[last]
    (tmp_path / "p.toml").write_text(tomli_w.dumps(content))
    with pytest.raises(SkitError, match=f"{last} is missing"):
        read(tmp_path / "p.toml")


def test_no_time_at_all_and_no_reference_are_refused(tmp_path: Path) -> None:
    save(
        tmp_path / "p.toml",
        structs.replace(MINE, coefficients=dict.fromkeys(MINE.coefficients, 0.0)),
    )
    with pytest.raises(SkitError, match="all coefficients are 0"):
        read(tmp_path / "p.toml")
    save(tmp_path / "p.toml", structs.replace(MINE, source="published"))
    with pytest.raises(SkitError, match="lacks its reference"):
        read(tmp_path / "p.toml")
    with pytest.raises(SkitError, match="cannot read"):
        read(tmp_path / "nowhere.toml")
