import hashlib
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predictor_examples import synthetic
from safetensors.numpy import save as encode

from specbench_kit.decoding.tree import NodeStats
from specbench_kit.errors import SkitError
from specbench_kit.predictors import artefact
from specbench_kit.predictors.artefact import (
    HEADER,
    WEIGHTS,
    PairHashes,
    Predictor,
    data_folder,
    default_folder,
    find,
    load,
    save,
)
from specbench_kit.predictors.base import FEATURES, families

PAIR = PairHashes("a" * 64, "b" * 64)
TRAIN, VALID = synthetic(800, seed=1), synthetic(300, seed=2)
NAMES = ("lightgbm", "logistic", "mlp", "random_forest", "xgboost")


def trained(family: str = "logistic", features: tuple[str, ...] = FEATURES) -> Predictor:
    scorer = families.get(family)().fit(TRAIN.select(features), VALID.select(features), {}, seed=0)
    return Predictor(family, scorer, features, 0.5, "throughput", PAIR, {"seed": 0}, {"auc": 0.8})


@pytest.fixture(scope="module")
def predictors() -> dict[str, Predictor]:
    return {name: trained(name) for name in NAMES}


@pytest.fixture
def folder(tmp_path: Path, predictors: dict[str, Predictor]) -> Path:
    save(tmp_path / "saved", predictors["logistic"])
    return tmp_path / "saved"


def rewrite(folder: Path, **changes: Any) -> None:
    """Change fields of the header."""
    header = json.loads((folder / HEADER).read_text())
    (folder / HEADER).write_text(json.dumps(header | changes))


def reweigh(folder: Path, content: bytes) -> None:
    """Replace the weights and record their hash, as a forger would."""
    (folder / WEIGHTS).write_bytes(content)
    rewrite(folder, weights_sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_scores_as_what_was_saved(name: str, tmp_path: Path, predictors: dict[str, Predictor]) -> None:
    saved = predictors[name]
    save(tmp_path / name, saved)
    loaded = load(tmp_path / name, pair=PAIR)
    assert replace(loaded, scorer=saved.scorer) == saved
    columns = dict(zip(FEATURES, VALID.features.T, strict=True))
    np.testing.assert_array_equal(loaded.score_many(columns), saved.score_many(columns))
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == [HEADER, WEIGHTS]


def test_a_token_is_accepted_from_the_threshold_on() -> None:
    predictor = trained(features=("confidence", "margin", "draft_position"))
    token = NodeStats(confidence=0.7, entropy=1.0, margin=0.4, logit_std=2.0, probability=0.7)
    score = predictor.score(token, draft_position=3)
    assert score == predictor.scorer.score((0.7, 0.4, 3))
    assert replace(predictor, threshold=score).accepts(token, 3)
    assert not replace(predictor, threshold=math.nextafter(score, 1)).accepts(token, 3)
    assert not replace(predictor, threshold=0.0).accepts(NodeStats(0.7, 1.0, math.nan, 2.0, 0.7), 3)


def test_scoring_a_saved_predictor_needs_no_training_library(tmp_path: Path, predictors: dict[str, Predictor]) -> None:
    for name, predictor in predictors.items():
        save(tmp_path / name, predictor)
    code = """
import sys
from pathlib import Path
for name in ("torch", "sklearn", "xgboost", "lightgbm", "scipy"):
    sys.modules[name] = None
from specbench_kit.predictors.artefact import load
for folder in sorted(Path(sys.argv[1]).iterdir()):
    print(load(folder).scorer.score((0.7, 1.0, 0.4, 2.0)))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    expected = [predictors[name].scorer.score((0.7, 1.0, 0.4, 2.0)) for name in NAMES]
    assert [float(line) for line in done.stdout.split()] == expected


def test_the_header_holds_nothing_of_the_machine(folder: Path) -> None:
    text = (folder / HEADER).read_text()
    header = json.loads(text)
    assert str(folder) not in text
    assert (header["schema"], header["features"], header["pair"]["target"]) == (1, list(FEATURES), "a" * 64)
    assert len(header["scaler"]["mean"]) == len(header["scaler"]["scale"]) == 4
    assert header["weights_sha256"] == hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def test_saving_again_replaces_the_artefact(folder: Path, predictors: dict[str, Predictor]) -> None:
    save(folder, predictors["xgboost"])
    assert load(folder).family == "xgboost"


def test_another_pair_is_refused_unless_forced(folder: Path) -> None:
    other = PairHashes("a" * 64, "c" * 64)
    with pytest.raises(SkitError, match="trained for another pair of models"):
        load(folder, pair=other)
    assert load(folder, pair=other, force=True).pair == PAIR


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40]) and None


def flip(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def drop(*fields: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        header = json.loads((folder / HEADER).read_text())
        (folder / HEADER).write_text(json.dumps({k: v for k, v in header.items() if k not in fields}))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no header": (lambda f: (f / HEADER).unlink(), "predictor.json is missing"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "weights.safetensors is missing"),
    "cut weights": (cut(WEIGHTS), "cut short or changed"),
    "empty weights": (lambda f: (f / WEIGHTS).write_bytes(b""), "cut short or changed"),
    "changed weights": (flip, "cut short or changed"),
    "cut header": (cut(HEADER), "predictor.json is not JSON"),
    "binary header": (lambda f: (f / HEADER).write_bytes(b"\xff\xfe\x00"), "predictor.json is not JSON"),
    "deep header": (lambda f: (f / HEADER).write_text("[" * 100_000), "predictor.json is not JSON"),
    "header is a folder": (lambda f: ((f / HEADER).unlink(), (f / HEADER).mkdir()), "predictor.json cannot be read"),
    "other JSON": (lambda f: (f / HEADER).write_text('{"model_type": "llama"}'), "not a predictor of this kit"),
    "a JSON list": (lambda f: (f / HEADER).write_text("[1, 2]"), "not a predictor of this kit"),
    "newer schema": (lambda f: rewrite(f, schema=2), "schema 2, this kit reads 1: update specbench-kit"),
    "unknown family": (lambda f: rewrite(f, family="oracle"), "unknown predictor family 'oracle'"),
    "other family": (lambda f: rewrite(f, family="xgboost"), "unexpected tensors"),
    "lacking threshold": (drop("threshold"), "lacks or garbles a field .'threshold'"),
    "lacking pair": (drop("pair"), "lacks or garbles a field .'pair'"),
    "garbled pair": (lambda f: rewrite(f, pair="x"), "lacks or garbles a field"),
    "garbled date": (lambda f: rewrite(f, created="yesterday"), "yesterday"),
    "threshold above 1": (lambda f: rewrite(f, threshold=35), "threshold must lie in 0..1, not 35"),
    "threshold is text": (lambda f: rewrite(f, threshold="0.5"), "lacks or garbles a field"),
    "threshold is nan": (lambda f: rewrite(f, threshold=math.nan), "threshold must lie in 0..1, not nan"),
    "three features": (lambda f: rewrite(f, features=list(FEATURES[:3])), "does not fit the features"),
    "other order": (lambda f: rewrite(f, features=list(FEATURES[::-1])), "in this order"),
    "unknown feature": (lambda f: rewrite(f, features=["a", "b", "c", "d"]), "features are some of"),
    "other scaler": (lambda f: rewrite(f, scaler=None), "the scaler in predictor.json is not that of the weights"),
    "pickle": (lambda f: reweigh(f, pickle.dumps({"mean": [0.0]})), "not a safetensors file"),
    "no tensors": (lambda f: reweigh(f, encode({})), "unexpected tensors"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_artefact_gives_one_clear_line(name: str, folder: Path) -> None:
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(SkitError, match=message) as caught:
        load(folder, pair=PAIR)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match=r"nowhere cannot be used: predictor.json is missing"):
        load(tmp_path / "nowhere")


DENSE_FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "infinite": ({"bias_0": np.array([np.inf])}, "not a finite float64"),
    "other dtype": ({"bias_0": np.zeros(1, np.float32)}, "not a finite float64"),
    "zero scale": ({"scale": np.zeros(4)}, "does not fit the features"),
    "two outputs": ({"weight_0": np.zeros((2, 4)), "bias_0": np.zeros(2)}, "do not fit together"),
    "other width": ({"weight_0": np.zeros((1, 5))}, "do not fit together"),
    "no dimension": ({"bias_0": np.array(0.0)}, "do not fit together"),
    "missing layer": ({"weight_2": np.zeros((1, 1)), "bias_2": np.zeros(1)}, "unexpected tensors"),
}
TREE_FORGERIES: dict[str, tuple[dict[str, Any], str]] = {
    "loop": ({"left": np.array([0, -1, -1], np.int32)}, "do not form trees"),
    "shared child": ({"root": np.array([0, 1], np.int32)}, "do not form trees"),
    "out of range": ({"left": np.array([2, -1, -1], np.int32)}, "do not form trees"),
    "overflow": ({"left": np.array([2**31 - 1, -1, -1], np.int32)}, "do not form trees"),
    "no root": ({"root": np.array([], np.int32)}, "do not fit the features"),
    "unknown feature": ({"feature": np.array([4, 0, 0], np.int16)}, "do not fit the features"),
    "negative feature": ({"feature": np.array([-1, 0, 0], np.int16)}, "do not fit the features"),
    "nan threshold": ({"threshold": np.array([np.nan, 0, 0], np.float32)}, "not finite"),
    "infinite value": ({"value": np.array([0, np.inf, 0])}, "not finite"),
    "other length": ({"value": np.zeros(2)}, "differ in length"),
    "other dtype": ({"left": np.array([1, -1, -1])}, "unexpected tensors"),
}
STUMP = {
    "feature": np.zeros(3, np.int16),
    "threshold": np.array([0.5, 0, 0], np.float32),
    "left": np.array([1, -1, -1], np.int32),
    "value": np.array([0, -1.0, 1.0]),
    "root": np.zeros(1, np.int32),
}


@pytest.mark.parametrize("name", DENSE_FORGERIES)
def test_forged_layers_are_refused(name: str, folder: Path, predictors: dict[str, Predictor]) -> None:
    changes, message = DENSE_FORGERIES[name]
    reweigh(folder, encode(predictors["logistic"].scorer.to_tensors() | changes))
    with pytest.raises(SkitError, match=message):
        load(folder)


@pytest.mark.parametrize("name", TREE_FORGERIES)
def test_forged_trees_are_refused(name: str, folder: Path) -> None:
    rewrite(folder, family="xgboost", scaler=None)
    reweigh(folder, encode(STUMP))
    assert load(folder).scorer.score((0.6, 0.0, 0.0, 0.0)) == pytest.approx(1 / (1 + math.exp(-1)))
    changes, message = TREE_FORGERIES[name]
    reweigh(folder, encode(STUMP | changes))
    with pytest.raises(SkitError, match=message):
        load(folder)


def test_a_predictor_with_foreign_features_or_threshold_cannot_be_made(predictors: dict[str, Predictor]) -> None:
    with pytest.raises(SkitError, match="features are some of"):
        replace(predictors["logistic"], features=())
    with pytest.raises(SkitError, match="threshold must lie in"):
        replace(predictors["logistic"], threshold=-0.1)


def test_saving_where_nothing_can_be_written_gives_one_clear_line(
    tmp_path: Path, predictors: dict[str, Predictor]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SkitError, match="cannot write the predictor to"):
        save(tmp_path / "file" / "predictor", predictors["logistic"])


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SKIT_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("relative/path", ""):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert data_folder() == tmp_path / "home/.local/share/specbench-kit/predictors"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_folder() == tmp_path / "data/specbench-kit/predictors"
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "kit"))
    assert data_folder() == tmp_path / "kit/predictors"
    assert default_folder(PAIR, "mlp") == tmp_path / "kit/predictors" / f"mlp-{'a' * 12}-{'b' * 12}"


@pytest.fixture
def kit_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(artefact, "BUNDLED", tmp_path / "bundled")
    return tmp_path


def test_find_puts_the_newest_run_first_and_its_recommended_family_before_the_others(
    kit_home: Path, predictors: dict[str, Predictor]
) -> None:
    old, new = "2025-01-01T00:00:00+00:00", "2025-06-01T00:00:00+00:00"
    bundled = kit_home / "bundled/default-logistic"
    save(bundled, replace(predictors["logistic"], created=old))
    save(default_folder(PAIR, "mlp"), replace(predictors["mlp"], created=new))
    save(default_folder(PAIR, "xgboost"), replace(predictors["xgboost"], created=new, recommended=True))
    other = PairHashes("c" * 64, "b" * 64)
    save(default_folder(other, "mlp"), replace(predictors["mlp"], pair=other))
    assert find(PAIR) == [default_folder(PAIR, "xgboost"), default_folder(PAIR, "mlp"), bundled]
    assert find(PAIR, "mlp") == [default_folder(PAIR, "mlp")]
    assert find(PAIR, "random_forest") == []
    assert find(other) == [default_folder(other, "mlp")]


def test_find_passes_over_strangers_and_puts_damaged_folders_last(
    kit_home: Path, predictors: dict[str, Predictor]
) -> None:
    assert find(PAIR) == []
    save(default_folder(PAIR, "mlp"), predictors["mlp"])
    damaged, stranger = default_folder(PAIR, "logistic"), kit_home / "home/predictors/notes"
    for folder in (damaged, stranger):
        folder.mkdir()
        (folder / HEADER).write_text('{"schema": 1,')
    assert find(PAIR) == [default_folder(PAIR, "mlp"), damaged]
    assert find(PAIR, "mlp") == [default_folder(PAIR, "mlp")]
    with pytest.raises(SkitError, match=r"predictor.json is not JSON"):
        load(damaged)
