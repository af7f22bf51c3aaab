"""A model's folder may hold code and name more of it: none of it runs, whatever stdin says."""

import json
from io import StringIO
from pathlib import Path

import pytest
from command_line import TinyPair, copy_model, error_line, read_object, skit_here, write_rows

from specbench_kit.models.pair import load_pair

CODE = """
from pathlib import Path
from transformers import {base}

Path({mark!r}).write_text("the folder's code was run")


class Own({base}):
    model_type = "own"
"""


def folder_with_code(
    pair: TinyPair, folder: Path, mark: Path, file: str, kind: str, base: str, **changes: str
) -> Path:
    """A copy of the draft whose `file` names a class of its own."""
    copy_model(pair.draft, folder)
    (folder / "own.py").write_text(CODE.format(base=base, mark=str(mark)))
    settings = read_object(folder / file) | changes | {"auto_map": {kind: "own.Own"}}
    (folder / file).write_text(json.dumps(settings))
    return folder


def bench(target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """`skit bench` to which somebody answers yes to whatever it may ask."""
    monkeypatch.setattr("sys.stdin", StringIO("y\n" * 20))
    prompts = write_rows(tmp_path / "prompts.jsonl", {"prompt": "one"})
    options = ["--target", target, "--draft", draft, "--dataset", prompts, "--max-new-tokens", 2]
    return skit_here("bench", "--method", "fixed-k", *options, "--out", tmp_path / "out")


def test_a_configuration_of_its_own_is_one_line(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    kind = ("config.json", "AutoConfig", "PreTrainedConfig")
    folder = folder_with_code(tiny, tmp_path / "draft", mark, *kind, model_type="own")
    done = bench(tiny.target, folder, tmp_path, monkeypatch)
    assert error_line(done).startswith("cannot load model 'draft': ")  # type: ignore[arg-type]
    assert not mark.exists()


def test_a_tokenizer_of_its_own_is_never_run(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    kind = ("tokenizer_config.json", "AutoTokenizer", "PreTrainedTokenizerFast")
    folder = folder_with_code(tiny, tmp_path / "draft", mark, *kind, tokenizer_class="Own")
    bench(tiny.target, folder, tmp_path, monkeypatch)
    assert not mark.exists()


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "experts_implementation"]
)
def test_a_configuration_names_no_kernel_from_the_hub(
    key: str, tiny: TinyPair, tmp_path: Path
) -> None:
    named = copy_model(tiny.draft, tmp_path / "draft", **{key: "somebody/kernel"})
    loaded = load_pair(str(tiny.target), str(named), device="cpu")
    assert (
        loaded.draft.model.config._attn_implementation
        == loaded.target.model.config._attn_implementation
        == "sdpa"
    )
