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
from command_line import PATIENCE_S
from msgspec import structs
from predictor_examples import synthetic
from safetensors.numpy import save as encode

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import NodeStats
from specbench_kit.predictors.artefact import Predictor, load, save
from specbench_kit.predictors.base import ALL_FEATURES, FEATURES, families
from specbench_kit.predictors.library import HEADER, WEIGHTS, PairHashes
from specbench_kit.predictors.thresholds import (
    LOCAL_DEPLOYMENT,
    PUBLISHED_RULE,
    DeploymentKey,
    ThresholdRule,
    TunedThreshold,
)

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


def rewrite(folder: Path, **changes: object) -> None:
    """Change fields of the header and seal it anew, as a forger would."""
    header = json.loads((folder / HEADER).read_text()) | changes
    del header["sha256"]
    seal = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()
    (folder / HEADER).write_text(json.dumps({**header, "sha256": seal}))


def reweigh(folder: Path, content: bytes) -> None:
    """Replace the weights and record their hash."""
    (folder / WEIGHTS).write_bytes(content)
    rewrite(folder, weights_sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_scores_as_what_was_saved(
    name: str, tmp_path: Path, predictors: dict[str, Predictor]
) -> None:
    saved = predictors[name]
    save(tmp_path / name, saved)
    loaded = load(tmp_path / name, pair=PAIR)
    assert replace(loaded, scorer=saved.scorer) == saved
    np.testing.assert_array_equal(
        loaded.scorer.score_many(VALID.features), saved.scorer.score_many(VALID.features)
    )
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == [HEADER, WEIGHTS]


@pytest.mark.parametrize("features", [FEATURES, ("confidence", "margin", "draft_position")])
def test_a_chain_is_scored_as_its_tokens_are(features: tuple[str, ...]) -> None:
    predictor = trained("xgboost", features)
    table = np.column_stack([VALID.features[:6], VALID.features[:6, 0]])
    tokens = [NodeStats(*row) for row in table.tolist()]
    chain = predictor.score_chain(table)
    assert chain == pytest.approx(
        [predictor.score(token, n) for n, token in enumerate(tokens, 1)], abs=1e-12
    )
    columns = dict(zip(ALL_FEATURES, [*table[2, :4], 3], strict=True))
    assert predictor.score(tokens[2], 3) == predictor.scorer.score(
        [columns[name] for name in features]
    )


def test_scoring_a_saved_needs_no_training_library(
    tmp_path: Path, predictors: dict[str, Predictor]
) -> None:
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    expected = [predictors[name].scorer.score((0.7, 1.0, 0.4, 2.0)) for name in NAMES]
    assert [float(line) for line in done.stdout.split()] == expected


def test_the_header_holds_nothing_of_the_machine(folder: Path) -> None:
    text = (folder / HEADER).read_text()
    header = json.loads(text)
    assert str(folder) not in text
    assert (header["schema"], header["features"], header["pair"]["target"]) == (
        1,
        list(FEATURES),
        "a" * 64,
    )
    assert len(header["scaler"]["mean"]) == len(header["scaler"]["scale"]) == 4
    assert header["weights_sha256"] == hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


def test_saving_again_replaces_the_artefact(folder: Path, predictors: dict[str, Predictor]) -> None:
    save(folder, predictors["xgboost"])
    assert load(folder).family == "xgboost"


def test_another_pair_is_refused_unless_forced(folder: Path) -> None:
    other_pair = PairHashes("a" * 64, "c" * 64)
    with pytest.raises(SkitError, match="trained for another pair of models"):
        load(folder, pair=other_pair)
    assert load(folder, pair=other_pair, force=True).pair == PAIR


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-40]) and None


def nudge(folder: Path) -> None:
    """Change the threshold and nothing else."""
    text = (folder / HEADER).read_text()
    (folder / HEADER).write_text(text.replace('"threshold": 0.5', '"threshold": 0.6'))


def flip(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def drop(*fields: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        header = json.loads((folder / HEADER).read_text())
        (folder / HEADER).write_text(
            json.dumps({k: v for k, v in header.items() if k not in fields})
        )
        if "sha256" not in fields:
            rewrite(folder)

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no header": (lambda f: (f / HEADER).unlink(), "predictor.json is missing"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "weights.safetensors is missing"),
    "cut weights": (cut(WEIGHTS), "cut short or changed"),
    "empty weights": (lambda f: (f / WEIGHTS).write_bytes(b""), "cut short or changed"),
    "changed weights": (flip, "cut short or changed"),
    "cut header": (cut(HEADER), "predictor.json is not JSON"),
    "binary header": (
        lambda f: (f / HEADER).write_bytes(b"\xff\xfe\x00"),
        "predictor.json is not JSON",
    ),
    "deep header": (lambda f: (f / HEADER).write_text("[" * 100_000), "predictor.json is not JSON"),
    "header is a folder": (
        lambda f: ((f / HEADER).unlink(), (f / HEADER).mkdir()),
        "predictor.json cannot be read",
    ),
    "other JSON": (
        lambda f: (f / HEADER).write_text('{"model_type": "llama"}'),
        "not a predictor of this kit",
    ),
    "a JSON list": (lambda f: (f / HEADER).write_text("[1, 2]"), "not a predictor of this kit"),
    "changed threshold": (nudge, "predictor.json was changed"),
    "no seal": (drop("sha256"), "sha256 is missing"),
    "newer schema": (
        lambda f: rewrite(f, schema=2),
        "schema 2, this kit reads 1: update specbench-kit",
    ),
    "unknown family": (lambda f: rewrite(f, family="oracle"), "unknown predictor family 'oracle'"),
    "other family": (lambda f: rewrite(f, family="xgboost"), "unexpected tensors"),
    "lacking threshold": (drop("threshold"), "threshold is missing"),
    "lacking pair": (drop("pair"), "pair is missing"),
    "garbled pair": (lambda f: rewrite(f, pair="x"), 'pair must be an object, not "x"'),
    "garbled date": (lambda f: rewrite(f, created="yesterday"), "yesterday"),
    "threshold above 1": (lambda f: rewrite(f, threshold=35), "threshold must lie in 0..1, not 35"),
    "threshold is text": (
        lambda f: rewrite(f, threshold="0.5"),
        'threshold must be a number, not "0.5"',
    ),
    "threshold is nan": (
        lambda f: rewrite(f, threshold=math.nan),
        "threshold must lie in 0..1, not nan",
    ),
    "three features": (
        lambda f: rewrite(f, features=list(FEATURES[:3])),
        "does not fit the features",
    ),
    "other order": (lambda f: rewrite(f, features=list(FEATURES[::-1])), "in this order"),
    "unknown feature": (
        lambda f: rewrite(f, features=["a", "b", "c", "d"]),
        "features are some of",
    ),
    "other scaler": (
        lambda f: rewrite(f, scaler=None),
        "the scaler in predictor.json is not that of the weights",
    ),
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
def test_forged_layers_are_refused(
    name: str, folder: Path, predictors: dict[str, Predictor]
) -> None:
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


def test_a_predictor_with_foreign_features_or_threshold_cannot_be_made(
    predictors: dict[str, Predictor],
) -> None:
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


POINTS = (
    TunedThreshold("wan", "d1", False, "token", 0.4, 7),
    TunedThreshold("wan", "d1", True, "cumulative", 0.2, 9),
    TunedThreshold("local", "", True, "cumulative", 0.6, 3),
)


def test_points_and_the_price_of_a_decision_are_kept(
    tmp_path: Path, predictors: dict[str, Predictor]
) -> None:
    saved = replace(
        predictors["logistic"],
        tuned=POINTS,
        decision_s=7e-5,
        decision_origin="measured in the loop",
    )
    save(tmp_path / "made", saved)
    loaded = load(tmp_path / "made")
    assert (loaded.tuned, loaded.decision_s, loaded.decision_origin) == (
        POINTS,
        7e-5,
        "measured in the loop",
    )


def test_the_point_of_a_place_is_taken_or_what_comes_closest(
    predictors: dict[str, Predictor],
) -> None:
    loaded, rule = (
        replace(predictors["logistic"], tuned=POINTS),
        ThresholdRule(send_last=True, score="cumulative"),
    )
    assert loaded.threshold_at(rule, DeploymentKey("wan", "d1")) == POINTS[1]
    changed = loaded.threshold_at(rule, DeploymentKey("wan", "d2"))
    assert (changed, changed.deployment_label(DeploymentKey("wan", "d2"))) == (
        POINTS[1],
        "wan with other values",
    )
    assert loaded.threshold_at(rule, DeploymentKey("elsewhere", "d3")) == POINTS[2]
    assert loaded.threshold_at(PUBLISHED_RULE, DeploymentKey("elsewhere", "d3")) == TunedThreshold(
        "local", "", False, "token", 0.5, 8
    )
    assert (
        loaded.threshold_at(ThresholdRule(send_last=True), LOCAL_DEPLOYMENT).rule == PUBLISHED_RULE
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 2.0},
        {"max_draft": 0},
        {"score": "x"},
        {"send_last": 1},
        {"deployment": None},
        {"more": 1},
    ],
)
def test_an_operating_point_that_makes_no_sense_is_refused(
    wrong: dict[str, object], folder: Path
) -> None:
    rewrite(folder, points=[{**structs.asdict(POINTS[0]), **wrong}])
    with pytest.raises(SkitError, match="cannot be used: ") as refused:
        load(folder)
    assert "\n" not in str(refused.value)
