"""Which predictors are there, and which of them is taken."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from tiny_predictors import PAIR, confidence_predictor

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors import library
from specbench_kit.predictors.artefact import load, save
from specbench_kit.predictors.library import (
    HEADER,
    PairHashes,
    data_folder,
    default_folder,
    entries,
    find,
)

OTHER = PairHashes("another", "draft")
OLD, NEW = "2025-01-01T00:00:00+00:00", "2025-06-01T00:00:00+00:00"
TRAINING = {"models": {"target": {"name": "big"}, "draft": {"name": "small"}}}


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's predictors."""
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(library, "BUNDLED", tmp_path / "bundled")
    return tmp_path / "home/predictors"


@pytest.fixture
def bundled(own: Path) -> Path:
    """Predictors that ship with the kit."""
    return own.parents[1] / "bundled"


def put(folder: Path, pair: PairHashes = PAIR, **changes: Any) -> Path:
    """Save a predictor there; `family` is only what it is called."""
    predictor = load(confidence_predictor(folder, pair))
    save(folder, replace(predictor, **changes))
    return folder


def test_the_users_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SKIT_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("relative/path", ""):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert data_folder() == tmp_path / "home/.local/share/specbench-kit/predictors"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert data_folder() == tmp_path / "data/specbench-kit/predictors"
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "kit"))
    assert data_folder() == tmp_path / "kit/predictors"
    pair = PairHashes("a" * 64, "b" * 64)
    assert default_folder(pair, "mlp") == tmp_path / "kit/predictors" / f"mlp-{'a' * 12}-{'b' * 12}"


def test_the_newest_run_goes_first_and_its_recommended_family_before_the_others(own: Path) -> None:
    old = put(own / "old", created=OLD, recommended=True)
    plain, recommended = put(own / "z", created=NEW), put(own / "a", created=NEW, recommended=True)
    put(own / "stranger", OTHER, created=NEW)
    assert find(PAIR) == [recommended, plain, old]
    assert find(OTHER) == [own / "stranger"]


def test_the_users_own_go_before_bundled_ones_even_where_those_are_newer(
    own: Path, bundled: Path
) -> None:
    shipped = put(bundled / "shipped", created=NEW, recommended=True)
    assert find(PAIR) == [shipped]
    mine = put(own / "mine", created=OLD)
    assert find(PAIR) == [mine, shipped]


def test_a_predictor_is_found_by_its_folders_name_or_its_family(own: Path, bundled: Path) -> None:
    mine, shipped = put(own / "mine-logistic"), put(bundled / "shipped", family="mlp")
    assert find(PAIR, "mine-logistic") == find(PAIR, "logistic") == [mine]
    assert find(PAIR, "shipped") == find(PAIR, "mlp") == [shipped]
    assert find(PAIR, "xgboost") == find(OTHER, "shipped") == []


def test_strangers_are_passed_over_and_damaged_folders_come_last(own: Path) -> None:
    assert find(PAIR) == []
    complete, damaged, stranger = (
        default_folder(PAIR, "mlp"),
        default_folder(PAIR, "logistic"),
        own / "notes",
    )
    put(complete, family="mlp")
    for folder in (damaged, stranger):
        folder.mkdir()
        (folder / HEADER).write_text('{"schema": 1,')
    assert find(PAIR) == [complete, damaged]
    assert find(PAIR, "mlp") == [complete]
    assert find(PAIR, "logistic") == [damaged]
    with pytest.raises(SkitError, match=r"predictor.json is not JSON"):
        load(damaged)


def test_the_listing_says_what_each_is_and_what_cannot_be_used(own: Path, bundled: Path) -> None:
    metrics = {"classification": {"auc": 0.8123}}
    put(own / "mine", created=NEW, training=TRAINING, metrics=metrics, recommended=True)
    put(bundled / "shipped", OTHER, training=TRAINING, metrics=metrics, max_draft=5)
    put(bundled / "bare")
    (own / "torn").mkdir()
    (own / "torn" / HEADER).write_text("{")
    listed = {entry["name"]: entry for entry in to_builtins(entries())}
    assert json.loads(json.dumps(list(listed.values()))) == list(listed.values())
    mine = (
        "logistic for big with small, trained 2025-06-01, AUC 0.812, drafts of up to 8, recommended"
    )
    assert listed["mine"]["summary"] == mine
    assert (
        listed["shipped"]["summary"]
        == "logistic for big with small, bundled, AUC 0.812, drafts of up to 5"
    )
    assert listed["mine"]["pair"] == {"target": "target", "draft": "draft"}
    assert [listed[name]["bundled"] for name in ("mine", "shipped", "torn")] == [False, True, False]
    assert "cannot be used: predictor.json is not JSON" in listed["torn"]["summary"]
    assert "cannot be used: classification is missing" in listed["bare"]["summary"]
