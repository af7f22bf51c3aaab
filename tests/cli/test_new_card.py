"""`skit new card`: from a file to a profile."""

from pathlib import Path

import pytest
from command_line import error_line, skit_here
from msgspec.structs import fields

from specbench_kit.cli.new import ARCHITECTURE_COMMENTS, DEVICE_COMMENTS
from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.architectures import Architecture, read_architecture
from specbench_kit.profilers.devices import Device, find_device
from specbench_kit.profilers.loading import read
from specbench_kit.profilers.subject import find_subject
from specbench_kit.profilers.variants import find_architecture


@pytest.mark.parametrize(
    "like", ["qwen3-8b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b", "eagle3:gemma3-27b"]
)
def test_an_architecture_card_begins_as_another_one(like: str, tmp_path: Path) -> None:
    done = skit_here("new", "card", "my-model", "--like", like, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "my-model.toml"
    assert read_architecture(path) == find_architecture(like)
    assert find_subject(str(path), "target").name == "my-model"
    # Every field says what it is.
    lines = path.read_text().splitlines()[2:]
    assert all("  # " in line for line in lines)


@pytest.mark.parametrize("like", ["h100", "a100", "m4-max", "rtx5090"])
def test_a_device_card_begins_as_another_one(like: str, tmp_path: Path) -> None:
    done = skit_here("new", "card", "my-gpu", "--like", like, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    own, card = find_device(str(tmp_path / "my-gpu.toml")), find_device(like)
    assert own.name == "my-gpu"
    for name in ("peak_flops", "memory_bytes", "bandwidth_bytes_per_s", "power_w"):
        assert getattr(own, name) == getattr(card, name)


def test_its_next_step_derives_a_profile(tmp_path: Path) -> None:
    done = skit_here("new", "card", "my-model", "--like", "gpt-oss-20b", "--out", tmp_path)
    command = done.stdout.partition("then: skit ")[2].split()
    assert command[0] == "profile-verifier"
    profile = tmp_path / "profile.toml"
    derived = skit_here(*command, "--out", tmp_path / "out", "--save-to", profile)
    assert derived.returncode == 0, derived.stderr
    assert read(profile).architecture == find_architecture("gpt-oss-20b")


def test_every_field_of_a_card_is_explained() -> None:
    assert list(ARCHITECTURE_COMMENTS) == [field.name for field in fields(Architecture)]
    assert set(DEVICE_COMMENTS) == {field.name for field in fields(Device)} - {
        "name",
        "aliases",
        "power_date",
    }


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken.toml").touch()
    assert error_line(skit_here("new", "card", "taken", "--out", tmp_path)).endswith(
        "taken.toml exists already: choose another name or --out"
    )
    refused = error_line(skit_here("new", "card", "mine", "--like", "gpt-9", "--out", tmp_path))
    assert refused.startswith("unknown architecture 'gpt-9'")
    assert "lower-case letters" in error_line(skit_here("new", "card", "My_Model"))
    assert error_line(skit_here("new", "method", "my-rule", "--like", "h100")).startswith(
        "--like has no effect"
    )


def test_a_file_of_ones_own_has_the_form_of_the_bundled_ones_or_none(tmp_path: Path) -> None:
    both = tmp_path / "both.toml"
    both.write_text("[one]\nlayers = 1\n[other]\nlayers = 1\n")
    with pytest.raises(SkitError, match="holds several cards, one, other: keep one in each file"):
        read_architecture(both)
    both.write_text("[one]\nfamily = 'llama'\n")
    with pytest.raises(SkitError, match="hidden_size is missing"):
        read_architecture(both)
