"""The draft model that belongs to a target: the user's own, a bundled one, or none, which is said in one line."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import TinyPair, error_line, read_object, skit_here, write_rows

from specbench_kit.core.errors import SkitError
from specbench_kit.models import draft_library
from specbench_kit.models.catalogue import ModelSource, locate
from specbench_kit.models.draft_library import HEAD, find, find_draft, find_own, trained_folder
from specbench_kit.models.gguf import RECORD
from specbench_kit.models.named import NAMED_PAIRS
from specbench_kit.models.pair import load_pair

pytestmark = pytest.mark.usefixtures("home")

NOTHING = (
    "no draft model belongs to the target 'target': give --draft MODEL, train one with skit train-draft, or name "
    "methods that need none, such as suffix or prompt-lookup"
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_rows(
        tmp_path / "prompts.jsonl", {"prompt": "one two one two"}, {"prompt": "a b a b"}
    )


def train(tiny: TinyPair) -> Path:
    """Put the tiny draft where `skit train-draft` puts those of the tiny target."""
    folder = trained_folder(locate(str(tiny.target), "target"), "draft")
    shutil.copytree(tiny.draft, folder)
    return folder


def test_the_bundled_target_has_the_bundled_draft_and_head() -> None:
    target = locate("bundled", "target")
    assert find_draft("auto", target) == locate("bundled", "draft")
    assert find_own(target, "head") == find(f"{HEAD}auto", target)


def test_a_draft_that_the_user_trained_is_loaded_with_its_target(
    tiny: TinyPair, home: Path
) -> None:
    with pytest.raises(SkitError, match=NOTHING):
        load_pair(str(tiny.target), device="cpu")
    folder = train(tiny)
    assert folder == home / "drafts" / "target"
    pair = load_pair(str(tiny.target), device="cpu")
    assert pair.needed_draft.source == ModelSource(str(folder), "target/draft", local_only=True)


def test_a_trained_draft_comes_before_the_bundled_one(tiny: TinyPair) -> None:
    target = locate("bundled", "target")
    shutil.copytree(tiny.draft, trained_folder(target, "draft"))
    assert find_draft("auto", target).location == str(trained_folder(target, "draft"))
    assert find_draft("bundled", target) == locate("bundled", "draft")


def test_what_is_bundled_for_a_named_model_belongs_to_every_copy_of_it(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_library, "BUNDLED_FOLDER", tmp_path / "bundled")
    shutil.copytree(tiny.draft, tmp_path / "bundled" / "smollm2" / "draft")
    converted = shutil.copytree(tiny.target, tmp_path / "gguf-1234")
    assert find_own(ModelSource(str(converted), "some-file", local_only=True), "draft") is None
    smollm2 = NAMED_PAIRS["smollm2"].target
    (converted / RECORD).write_text(json.dumps({"sha256": smollm2.sha256}))
    copies = [
        ModelSource(str(converted), "some-file", local_only=True),
        ModelSource(str(converted), "smollm2", local_only=True),
        ModelSource(smollm2.repository, smollm2.repository, local_only=False),
    ]
    drafts = [find_draft("auto", copy) for copy in copies]
    assert {draft.location for draft in drafts} == {str(tmp_path / "bundled/smollm2/draft")}
    assert [draft.label for draft in drafts] == [
        "some-file/draft",
        "smollm2/draft",
        f"{smollm2.repository}/draft",
    ]


def test_all_runs_what_needs_no_draft_and_says_once_why_others_cannot(
    tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    command = ["bench", "--target", tiny.target, "--dataset", prompts, "--max-new-tokens", 6]
    done = skit_here(
        *command, "--method", "group:draft-free", "--method", "all", "--out", tmp_path / "runs"
    )
    assert done.returncode == 0, done.stderr
    runs = [read_object(file) for file in (tmp_path / "runs").glob("*/run.json")]
    assert {"suffix", "prompt-lookup"} <= {run["method"] for run in runs}
    assert all("draft" not in run["models"] for run in runs)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("left out: "))
    assert line.endswith(" more; the report says why")
    (report,) = (tmp_path / "runs").glob("*-bench-*/report.md")
    (row,) = (
        row
        for row in report.read_text().splitlines()
        if row.startswith("| left out: ") and NOTHING in row
    )
    assert {"`fixed-k`", "`specedge`", "`wisp`"} <= set(
        row.split("|")[1].strip().removeprefix("left out: ").split(", ")
    )


def test_a_named_method_without_its_draft_leaves_nothing(
    tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    command = ["bench", "--target", tiny.target, "--dataset", prompts, "--out", tmp_path / "runs"]
    assert error_line(skit_here(*command, "--method", "suffix", "--method", "fixed-k")) == NOTHING
    assert not (tmp_path / "runs").exists()


def test_a_run_with_the_targets_own_draft_is_run_again(
    tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    train(tiny)
    options = [
        "--target",
        tiny.target,
        "--dataset",
        prompts,
        "--max-new-tokens",
        6,
        "--out",
        tmp_path / "runs",
    ]
    first = skit_here("bench", "--method", "fixed-k", *options)
    assert first.returncode == 0, first.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert read_object(run / "run.json")["models"]["draft"]["name"] == "target/draft"
    again = skit_here(
        "rerun", run, "--target", tiny.target, "--data-dir", tmp_path, "--out", tmp_path / "again"
    )
    assert again.returncode == 0, again.stderr
    assert "outputs" in again.stdout
