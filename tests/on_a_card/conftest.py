"""Commands and engines on an emulated card: see `emulated_card`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import TinyPair, copy_model, skit_here, write_rows
from emulated_card import Machine, emulated_cards


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine with two cards."""
    with emulated_cards(2) as machine:
        yield machine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what commands keep a folder of its own."""
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts."""
    rows: list[dict[str, Any]] = [
        {"id": "one", "prompt": "How many?"},
        {"id": "two", "prompt": "Who was first?"},
    ]
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *rows)


@pytest.fixture(scope="session")
def short(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """The tiny pair with a short context, so that its profiles take seconds."""
    folder = tmp_path_factory.mktemp("short")
    models = [
        copy_model(model, folder / model.name, max_position_embeddings=128)
        for model in (tiny.target, tiny.draft)
    ]
    return TinyPair(*models)


@pytest.fixture
def command(machine: Machine) -> Callable[..., dict[str, Any]]:
    """Run `skit` on the first card, called `cuda`; returns its JSON document."""

    def run(*arguments: object) -> dict[str, Any]:
        with machine.counts.during() as counts:
            done = skit_here(*arguments, "--device", "cuda", "--json")
        assert done.returncode == 0, done.stderr
        assert counts.launches > 0, "something was computed on the card"
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return document

    return run
