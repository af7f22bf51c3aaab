"""Where a dataset's prompts come from: the data directory, the hub or its cache, then the bundled sample."""

import json
import os
import socket
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from documents import block
from http_servers import running
from plug_ins import install, only_plug_ins_of

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.base import LoadedDataset, datasets
from specbench_kit.datasets.loading import load

DATA = os.environ.get("SKIT_DATA_DIR")
CLOSED_PORT = "http://127.0.0.1:9"
QUESTION = {"question": "How many?", "answer": "#### 1"}


@pytest.fixture(autouse=True)
def _no_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIT_DATA_DIR", raising=False)


def local(name: str, data_dir: Path | None, limit: int | None = None) -> LoadedDataset:
    return load(name, data_dir=data_dir, allow_sample=False, limit=limit, seed=0)


def put(folder: Path, relative: str, *rows: JsonObject) -> None:
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(code: str, home: Path, **environment: str) -> Any:
    """Return what a fresh interpreter prints as JSON, with the Hugging Face folders in `home` and no hub."""
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("HF_", "SKIT_"))
    }
    variables = {"HF_HOME": str(home), "HF_ENDPOINT": CLOSED_PORT, "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOAD = """
import json, sys
from specbench_kit.datasets.loading import load
loaded = load({name!r}, data_dir=None, allow_sample={allow_sample}, limit=None, seed=0)
print(json.dumps([loaded.source, loaded.location, [p.turns for p in loaded.prompts], "torch" in sys.modules]))
"""


def test_the_argument_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "argument", "gsm8k/test.jsonl", QUESTION)
    put(tmp_path / "environment", "gsm8k/test.jsonl", QUESTION, QUESTION)
    monkeypatch.setenv("SKIT_DATA_DIR", str(tmp_path / "environment"))
    assert local("gsm8k", tmp_path / "argument").total == 1
    assert local("gsm8k", None).total == 2


def test_a_local_copy_is_recorded_by_its_relative_path(tmp_path: Path) -> None:
    put(tmp_path, "gsm8k/test.jsonl", QUESTION)
    loaded = local("gsm8k", tmp_path)
    assert (loaded.name, loaded.source, loaded.location) == ("gsm8k", "local", "gsm8k/test.jsonl")


def test_a_text_file_gives_one_row_per_line(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    paragraph = " ".join(["word"] * 128)
    (tmp_path / "text/wikitext2_test.txt").write_text(f" \n = Title = \n {paragraph} and more \n")
    assert [(p.id, p.turns) for p in local("wikitext-2", tmp_path).prompts] == [
        ("wikitext-2-2", (paragraph,))
    ]


def test_a_local_copy_in_another_layout_is_refused_with_its_line(tmp_path: Path) -> None:
    put(tmp_path, "gsm8k/test.jsonl", QUESTION, {"problem": "?"})
    with pytest.raises(SkitError, match=r"test\.jsonl, line 2: the field 'question' is missing"):
        local("gsm8k", tmp_path)


def test_a_data_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="is not a folder"):
        local("gsm8k", tmp_path / "nowhere")


def test_an_unknown_name_is_answered_by_the_nearest_and_by_the_command_that_lists_all(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        SkitError, match=r"did you mean 'gsm8k'\?\); skit list datasets shows all \d+"
    ):
        local("gsm8", tmp_path)


@pytest.mark.parametrize("name", [name for name, entry in datasets.all().items() if entry.local])
def test_without_hub_and_permission_the_error_says_where_to_put_the_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SkitError) as raised:
        local(name, tmp_path)
    message = str(raised.value)
    assert str(datasets.get(name).local) in message
    assert "SKIT_DATA_DIR" in message
    assert "\n" not in message


def test_an_unreachable_hub_falls_back_to_the_sample(tmp_path: Path) -> None:
    source, location, turns, torch = run(LOAD.format(name="gsm8k", allow_sample=True), tmp_path)
    assert (source, location, torch) == ("sample", "gsm8k", False)
    assert len(turns) >= 48


def test_a_file_outside_the_hub_that_is_out_of_reach_falls_back_too(tmp_path: Path) -> None:
    code = LOAD.format(name="spec-bench", allow_sample=True)
    source, location, _, _ = run(code, tmp_path, HF_HUB_OFFLINE="1")
    assert (source, location) == ("sample", "chat")


def test_a_hub_that_accepts_and_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        source, *_ = run(
            LOAD.format(name="gsm8k", allow_sample=True), tmp_path, HF_ENDPOINT=endpoint
        )
    assert source == "sample"


FILL_CACHE = """
import os
from datasets import config
from datasets.packaged_modules.json.json import Json
builder = Json(dataset_name="gsm8k", config_name="main", data_files={{"test": {file!r}}})
builder.download_and_prepare(os.path.join(config.HF_DATASETS_CACHE, "openai___gsm8k", "main", "0.0.0", "abc"))
print("null")
"""


def test_the_hub_library_s_cache_serves_without_a_network(tmp_path: Path) -> None:
    put(tmp_path, "rows.jsonl", QUESTION)
    run(FILL_CACHE.format(file=str(tmp_path / "rows.jsonl")), tmp_path)
    source, location, turns, _ = run(LOAD.format(name="gsm8k", allow_sample=False), tmp_path)
    assert (source, location, turns) == ("hub", "openai/gsm8k:main:test", [["How many?"]])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A real HTTP server over `tmp_path`; gives its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    with running(
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    ) as port:
        yield f"http://127.0.0.1:{port}"


FETCH = """
import json
from specbench_kit.datasets.base import Hub
from specbench_kit.datasets.loading import fetch_rows
print(json.dumps(fetch_rows(Hub("someone/rows", "train", url={url!r}))))
"""


def test_rows_outside_the_hub_are_downloaded(tmp_path: Path, served: str) -> None:
    put(tmp_path, "rows.jsonl", QUESTION, QUESTION)
    rows = run(FETCH.format(url=f"{served}/rows.jsonl"), tmp_path / "home")
    assert rows == [["rows.jsonl, line 1", QUESTION], ["rows.jsonl, line 2", QUESTION]]


LISTED = """
import json
from specbench_kit.cli.listing import kinds
print(json.dumps([entry for entry in kinds()["datasets"]() if entry["name"] == "proverbs"]))
"""


def test_the_class_of_the_page_is_a_dataset_of_another_distribution(tmp_path: Path) -> None:
    """It is named by an entry point, and states no address on the hub."""
    points = tomllib.loads(block("toml", "specbench_kit.datasets"))["project"]["entry-points"][
        "specbench_kit.datasets"
    ]
    (entry,) = (f"{name} = {entry_point}" for name, entry_point in points.items())
    module = entry.partition(" = ")[2].partition(":")[0]
    install(tmp_path, module, block("python", "(Dataset)"), "specbench_kit.datasets", [entry])
    put(tmp_path, "proverbs/test.jsonl", {"begin": "All that glitters is not", "end": "gold"})
    code = only_plug_ins_of(tmp_path) + LOAD.format(name="proverbs", allow_sample=False)
    printed = run(code, tmp_path, PYTHONPATH=str(tmp_path), SKIT_DATA_DIR=str(tmp_path))
    assert printed == ["local", "proverbs/test.jsonl", [["All that glitters is not"]], False]
    (listed,) = run(only_plug_ins_of(tmp_path) + LISTED, tmp_path, PYTHONPATH=str(tmp_path))
    assert (listed["local"], listed["hub"]) == ("proverbs/test.jsonl", None)


def test_discovery_imports_no_heavy_library(tmp_path: Path) -> None:
    code = """
import json, sys
import specbench_kit.datasets.loading
from specbench_kit.datasets.base import datasets
datasets.all()
print(json.dumps(sorted({"torch", "datasets", "pandas", "transformers", "numpy"} & set(sys.modules))))
"""
    assert run(only_plug_ins_of() + code, tmp_path) == []


needs_data = pytest.mark.skipif(DATA is None, reason="SKIT_DATA_DIR is not set")


@needs_data
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gsm8k", 600),
        ("spec-bench", 480),
        ("humaneval", 164),
        ("mt-bench", 80),
        ("wikitext-2", 763),
    ],
)
def test_the_real_data_give_every_prompt(name: str, count: int) -> None:
    loaded = local(name, Path(str(DATA)))
    assert (loaded.source, loaded.total, len(loaded.prompts)) == ("local", count, count)


@needs_data
def test_spec_bench_has_six_tasks_of_eighty_and_its_dialogues_two_turns() -> None:
    prompts = local("spec-bench", Path(str(DATA))).prompts
    tasks = ("multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag")
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(tasks, 80)
    assert {prompt.category for prompt in prompts if len(prompt.turns) == 2} == {"multi_turn"}
    assert sum(len(prompt.turns) == 2 for prompt in prompts) == 80


@needs_data
def test_mt_bench_has_eight_categories_of_ten() -> None:
    prompts = local("mt-bench", Path(str(DATA))).prompts
    assert sorted(Counter(prompt.category for prompt in prompts).values()) == [10] * 8
    assert {len(prompt.turns) for prompt in prompts} == {2}
