"""Free memory, and models that do not fit into it."""

from pathlib import Path

import psutil
import pytest
import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.models import memory
from specbench_kit.models.pair import load_pair

CPU = torch.device("cpu")
GIB = 1 << 30


def write_group(folder: Path, files: memory._Files, limit: str, usage: int, pages: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files.limit).write_text(f"{limit}\n")
    (folder / files.usage).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{files.file_pages} {pages}\n")


@pytest.mark.parametrize("version", ["OLD", "NEW"])
def test_the_tightest_limit_above_a_process_counts(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = getattr(memory, version)._replace(root=tmp_path / "groups")
    monkeypatch.setattr(memory, version, files)
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text(f"{'5:cpu,memory' if version == 'OLD' else '0:'}:/user/job\n")
    write_group(files.root, files, "max" if version == "NEW" else str((1 << 63) - 4096), 7, 0)
    write_group(files.root / "user", files, str(GIB), GIB // 2, GIB // 8)
    write_group(files.root / "user/job", files, str(2 * GIB), 0, 0)
    assert memory.free_bytes(CPU) == min(GIB // 2 + GIB // 8, psutil.virtual_memory().available)


def test_a_container_sees_its_group_at_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = memory.NEW._replace(root=tmp_path / "groups")
    monkeypatch.setattr(memory, "NEW", files)
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("0::/a/path/of/the/host\n")
    write_group(files.root, files, str(GIB), GIB // 4, 0)
    assert memory.free_bytes(CPU) == min(GIB - GIB // 4, psutil.virtual_memory().available)


def test_without_groups_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "none")
    assert 0 < memory.free_bytes(CPU) <= psutil.virtual_memory().total


def test_a_pair_that_does_not_fit_is_one_line_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = load_pair("bundled", "bundled")
    sizes = [memory.held_bytes(model.shell, model.named_executor) for model in pair.loaded.values()]
    assert min(sizes) > 0, "nothing is in memory yet"
    files = [
        next(Path(model.source.location).glob("*.safetensors")) for model in pair.loaded.values()
    ]
    for size, file in zip(sizes, files, strict=True):
        assert size == pytest.approx(file.stat().st_size, rel=0.01), (
            "weights are held as they are stored, once"
        )
    monkeypatch.setattr(memory, "free_bytes", lambda _: sum(sizes) + memory.BESIDE_BYTES)
    load_pair("bundled", "bundled")
    monkeypatch.setattr(memory, "free_bytes", lambda _: sum(sizes) + memory.BESIDE_BYTES - 1)
    with pytest.raises(
        SkitError, match=r"GB of bundled/target and .* GB of bundled/draft do not fit into the"
    ):
        load_pair("bundled", "bundled")


def test_weights_that_are_widened_count_as_they_will_be_held() -> None:
    pair = load_pair("bundled", None)
    stored = memory.held_bytes(pair.target.shell)
    assert memory.held_bytes(pair.target.shell, "llama-cpu") == 2 * stored
    assert pair.target.model is pair.target.shell
    assert memory.held_bytes(pair.target.shell) == 0


def test_a_synthetic_pair_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 0)
    pair = load_pair("synthetic", "synthetic:ranks=0.8+0.1")
    assert {memory.held_bytes(model.shell) for model in pair.loaded.values()} == {0}
