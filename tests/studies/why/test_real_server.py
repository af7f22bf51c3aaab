"""llama.cpp's own server, from the package `xllamacpp`, with a drafter that fits, with a broken one, and with none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import skit_here, write_rows
from tiny_gguf import CONTEXT, write_model

from specbench_kit import api
from specbench_kit.core.typed_json import JsonObject

xllamacpp = pytest.importorskip("xllamacpp", reason="pip install --no-deps xllamacpp")

pytestmark = pytest.mark.slow
WIDE = {"width": 256, "layers": 4, "letters_only": True}
"""Sizes at which a forward takes longer than the pieces of a stream need to be told apart."""
PROMPTS = ("to be or not", "once upon a", "the cat sat", "seven suns", "a long way", "no one but")
DRAFTS = {"fits": {"disturbed": 0.02}, "broken": {"seed": 77}, "off": None}


def serve(target: Path, draft: Path | None) -> Any:
    options = xllamacpp.CommonParams()
    options.model.path = str(target)
    options.n_ctx, options.n_parallel, options.port, options.verbosity = CONTEXT, 1, 0, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.endpoint_metrics = True
    if draft is not None:
        kinds = xllamacpp.common_speculative_type
        options.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        drafter = options.speculative.draft
        drafter.mparams.path = str(draft)
        drafter.cpuparams.n_threads = drafter.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(options)


def address(server: Any) -> str:
    return "llama-cpp://" + str(server.listening_address).removeprefix("http://")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("why")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return write_model(folder / "target.gguf", **WIDE)


@pytest.fixture(scope="module")
def plain(target: Path) -> Iterator[str]:
    server = serve(target, None)
    yield address(server)
    del server


def explained(folder: Path, *servers: str) -> tuple[JsonObject, Path]:
    rows = ({"id": text[:3], "prompt": text, "chat": False} for text in PROMPTS)
    prompts = write_rows(folder / "prompts.jsonl", *rows)
    done = skit_here(
        *("why", *servers, "--dataset", prompts, "--max-new-tokens", 24, "--ignore-eos"),
        *("--out", folder / "out", "--json"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    return document["summary"], Path(document["run_dirs"][0])


def rules(summary: JsonObject) -> set[str]:
    return {finding["rule"] for finding in summary["findings"]}


@pytest.mark.parametrize("drafter", DRAFTS)
def test_a_planted_fault_is_named_and_no_other(
    drafter: str, folder: Path, target: Path, plain: str
) -> None:
    weights = DRAFTS[drafter]
    draft = None if weights is None else write_model(folder / "draft.gguf", **(WIDE | weights))
    server = serve(target, draft)
    summary, made = explained(folder, f"plain={plain}", f"spec={address(server)}")
    numbers = summary["numbers"]
    assert numbers["round_s"]["value"] > 0
    assert numbers["plain_server_s"]["value"] > 0
    assert ("broken-drafter" in rules(summary)) == (drafter == "broken")
    assert ("never-drafts" in rules(summary)) == (drafter == "off")
    headline = api.load(made).headline
    if drafter == "broken":
        assert summary["outcome"] == "does not pay"
        assert "The drafter is broken" in headline
    if drafter == "fits":
        assert numbers["acceptance_rate"]["value"] > 0.5
        # Answers of two tokens leave no room for a draft, and prompts of a known beginning are narrow forwards.
        assert numbers["undrafted_s"]["value"] > 0
        assert len({a["width"] for a in summary["answers"] if a["probe"] == "width"}) > 1
    if drafter == "off":
        assert summary["outcome"] != "pays"
    del server


def test_one_server_is_told_from_its_own_rounds_without_a_draft(folder: Path, target: Path) -> None:
    draft = write_model(folder / "draft.gguf", **(WIDE | {"seed": 77}))
    server = serve(target, draft)
    summary, made = explained(folder, address(server))
    assert "broken-drafter" in rules(summary)
    assert summary["numbers"]["plain_server_s"] is None
    assert "at spec itself" in summary["numbers"]["plain_s"]["source"]
    assert any(line.startswith("ONE SERVER") for line in api.load(made).warnings)
    del server
