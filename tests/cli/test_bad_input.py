"""Each kind of bad input ends with one line, exit code 2 and no traceback, and loses no finished work."""

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import (
    SKIT,
    TinyPair,
    copy_model,
    environment,
    error_line,
    read_object,
    read_rows,
    skit,
    skit_here,
    write_rows,
)

CLOSED_PORT = "http://127.0.0.1:9"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_rows(
        tmp_path / "prompts.jsonl",
        *({"id": f"q{i}", "prompt": f"How many are {i}?"} for i in range(6)),
    )


def bench(prompts: Path, *options: object, method: str = "fixed-k") -> list[object]:
    out = prompts.parent / "results"
    return [
        "bench",
        "--method",
        method,
        "--dataset",
        prompts,
        "--max-new-tokens",
        8,
        "--out",
        out,
        *options,
    ]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--method", "fixd-k"],
            "unknown method 'fixd-k' (did you mean 'fixed-k'?); skit list methods shows all ",
        ),
        (["--method", "fixed-k:q=1"], "fixed-k: unknown option 'q'; known: k"),
        (["--method", "fixed-k:k"], "fixed-k: option 'k' needs a value, as in k=..."),
        (["--method", "fixed-k:k=two"], "fixed-k: k must be a whole number, not 'two'"),
        (["--method", "fixed-k:k=0"], "fixed-k: k must be at least 1, not 0"),
        (
            ["--method", "threshold:schedule=odd"],
            "threshold: schedule must be one of constant, heuristic, ",
        ),
        (
            ["--method", "fixed-k", "--dataset", "gsm8"],
            "unknown dataset 'gsm8' (did you mean 'gsm8k'?); skit list datasets shows all ",
        ),
        (["--method", "fixed-k", "--dataset", "no.jsonl"], "there is no prompt file 'no.jsonl'"),
        (["--method", "fixed-k", "--dataset", "notes.txt"], "there is no prompt file 'notes.txt'"),
        (
            ["--method", "fixed-k", "--data-dir", "nowhere"],
            "the data directory 'nowhere' is not a folder: correct it",
        ),
        (["--method", "fixed-k", "--limit", "0"], "--limit must be at least 1, not 0"),
        (
            ["--method", "fixed-k", "--link", "60ms"],
            "--link emulates a link to a server and takes its fields, as in ",
        ),
        (
            ["--method", "fixed-k", "--temperature", "1e-300"],
            "--temperature 1e-300 is too small to compute with: the smallest is 1e-06, and 0 decodes greedily",
        ),
        (
            ["--method", "fixed-k", "--temperature", "nan"],
            "--temperature must be a number from 0 up, not nan",
        ),
        (
            ["--config", "no.toml"],
            "cannot read no.toml: No such file or directory; --config takes a TOML file",
        ),
        (
            ["--method", "fixed-k", "--method", "fixed-k"],
            "a method is given twice: name each --method once",
        ),
    ],
)
def test_what_no_run_can_be_made_of_is_refused_before_torch_is_loaded(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    done = skit("bench", *arguments, cwd=tmp_path)
    assert error_line(done).startswith(line)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_that_is_not_there_is_refused_before_torch_is_loaded() -> None:
    """In a process of its own: those of the test above have loaded everything."""
    script = """
import sys
from specbench_kit.cli.main import main
try:
    main()
finally:
    print("loaded:", sorted({"torch", "transformers"} & set(sys.modules)))
"""
    options = ("--method", "fixed-k", "--dataset", "gsm8")
    for processes in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", script, "bench", *options, "--processes", str(processes)],
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        assert error_line(done).startswith("unknown dataset 'gsm8'")
        assert done.stdout == "loaded: []\n"


def test_an_error_is_wrapped_between_words_on_a_terminal() -> None:
    name = " ".join(["no dataset"] * 12)
    command = [SKIT, "bench", "--method", "fixed-k", "--temperature", "0.5", "--dataset", name]
    piped = subprocess.run(
        command, capture_output=True, text=True, env=environment(), check=False
    ).stderr
    for columns in (60, 120):
        ours, theirs = pty.openpty()
        subprocess.run(
            command,
            stdout=theirs,
            stderr=theirs,
            env=environment(COLUMNS=str(columns)),
            check=False,
        )
        os.close(theirs)
        text = os.read(ours, 65536).decode()
        os.close(ours)
        lines = text.splitlines()
        assert len(lines) > 1
        assert max(map(len, lines)) <= columns
        assert " ".join(text.split()) == piped.strip()


def test_malformed_prompts_are_named_by_file_and_line(tiny: TinyPair, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt":\n')
    assert error_line(skit_here(*bench(file, *tiny.options))).startswith(
        "prompts.jsonl, line 2: not valid JSON"
    )
    file.write_text('{"prompt": "a"}\n\n{"text": "b"}\n')
    assert error_line(skit_here(*bench(file, *tiny.options))).startswith(
        "prompts.jsonl, line 3: none of the fields"
    )


def test_a_prompt_longer_than_the_context_fails_alone(tiny: TinyPair, tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "Hm?"},
        {"id": "long", "prompt": "?" * 600},
        {"id": "b", "prompt": "And?"},
    ]
    done = skit(*bench(write_rows(tmp_path / "prompts.jsonl", *rows), *tiny.options), "--strict")
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("strict: requests failed: 1 of ")
    assert "Token indices" not in done.stderr
    (run,) = (tmp_path / "results").iterdir()
    records = {row["request_id"]: row for row in read_rows(run / "requests.jsonl")}
    assert records["long"]["finish_reason"] == "error"
    assert records["long"]["error"] == "the prompt has 619 tokens; the context holds 1 to 511"
    assert records["a"]["finish_reason"] in ("eos", "length")
    assert records["b"]["finish_reason"] in ("eos", "length")
    assert read_object(run / "summary.json")["requests"] == {
        "planned": 3,
        "finished": 2,
        "failed": 1,
    }
    assert "FAILED REQUESTS: 1 of 3" in done.stdout
    assert "| long | the prompt has 619 tokens" in (run / "report.md").read_text()


def test_a_draft_model_of_a_shorter_context_is_named_before_the_work(
    tiny: TinyPair, tmp_path: Path
) -> None:
    draft = shutil.copytree(tiny.draft, tmp_path / "draft")
    config = read_object(draft / "config.json")
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    rows = [{"id": "a", "prompt": "Hm?"}, {"id": "long", "prompt": "?" * 60}]
    command = bench(
        write_rows(tmp_path / "prompts.jsonl", *rows), "--target", tiny.target, "--draft", draft
    )
    done = skit_here(*command)
    line = next(line for line in done.stdout.splitlines() if line.startswith("SHORT CONTEXT: "))
    assert line.startswith(
        "SHORT CONTEXT: the draft model holds 64 tokens and the target 512: requests of more than "
    )
    assert "FAILED REQUESTS: 1 of 2" in done.stdout
    assert done.stdout.index("SHORT CONTEXT") < done.stdout.index("FAILED REQUESTS")
    short = skit_here(
        *bench(
            write_rows(tmp_path / "short.jsonl", rows[0]), "--target", tiny.target, "--draft", draft
        )
    )
    assert "SHORT CONTEXT" not in short.stdout


def test_models_that_are_not_there_are_refused(tiny: TinyPair, prompts: Path) -> None:
    draft = ("--draft", tiny.draft)
    missing = prompts.parent / "nowhere"
    assert error_line(skit_here(*bench(prompts, "--target", missing, *draft))) == (
        f"no target model '{missing}': give a folder, a GGUF file, a hub id like owner/name or owner/name@revision, "
        "'qwen2.5-coder', 'qwen3', 'llama3', 'gemma3', 'smollm2', 'bundled' or 'synthetic'"
    )
    line = error_line(skit_here(*bench(prompts, "--target", prompts.parent, *draft)))
    assert line == f"the folder '{prompts.parent}' holds no model: config.json is missing"


def test_truncated_weights_are_refused(tiny: TinyPair, prompts: Path) -> None:
    target = copy_model(tiny.target, prompts.parent / "cut")
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    line = error_line(skit_here(*bench(prompts, "--target", target, "--draft", tiny.draft)))
    assert line.startswith("cannot load model 'cut': ")


def test_tokenizers_that_share_nothing_are_refused(tiny: TinyPair, prompts: Path) -> None:
    draft = copy_model(tiny.draft, prompts.parent / "other")
    tokenizer = read_object(draft / "tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {f"x{token}x": number for token, number in vocabulary.items()}
    tokenizer["added_tokens"] = []
    (draft / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    line = error_line(skit_here(*bench(prompts, "--target", tiny.target, "--draft", draft)))
    assert line == (
        f"the tokenizers of target '{tiny.target}' and draft '{draft}' share no token: name another draft"
    )


def test_a_hub_model_without_a_network_is_refused(
    tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    offline = environment(
        HF_HUB_OFFLINE="0", HF_ENDPOINT=CLOSED_PORT, HF_HOME=str(tmp_path / "hub"), no_proxy="*"
    )
    command = bench(prompts, "--target", "owner/model", "--draft", tiny.draft)
    line = error_line(skit(*command, env=offline))
    assert line.startswith("cannot load model 'owner/model': ")


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_nan_logits_end_the_run_and_keep_its_directory(
    role: str, temperature: float, tiny: TinyPair, prompts: Path
) -> None:
    from safetensors.torch import load_file, save_file

    broken = copy_model(getattr(tiny, role), prompts.parent / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    models = {"target": tiny.target, "draft": tiny.draft, role: broken}
    options = [part for name, folder in models.items() for part in (f"--{name}", folder)]
    done = skit_here(*bench(prompts, *options, "--temperature", temperature))
    assert (
        error_line(done)
        == "the model returned NaN logits: check its weights, or try --dtype float32"
    )
    (run,) = (prompts.parent / "results").iterdir()
    assert read_object(run / "summary.json")["partial"] is True
    assert "PARTIAL RUN: 0 of 6" in (run / "report.md").read_text()


def test_a_results_folder_that_cannot_be_made_is_refused(tiny: TinyPair, prompts: Path) -> None:
    line = error_line(skit_here(*bench(prompts, *tiny.options, "--out", prompts / "results")))
    assert line == (
        f"cannot make a run directory in {prompts / 'results'}: Not a directory; "
        "make room there or choose another folder with --out"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 28 kB."""
    folder = tmp_path / "results"
    folder.mkdir()
    if mount(folder, "size=28k").returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def mount(folder: Path, options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False, capture_output=True
    )


def test_a_full_disk_keeps_what_was_finished_and_the_run_goes_on_with_room(
    small_disk: Path, tiny: TinyPair, prompts: Path
) -> None:
    command = bench(prompts, *tiny.options, "--max-new-tokens", 40)
    line = error_line(skit_here(*command))
    (run,) = small_disk.iterdir()
    assert line.startswith(
        f"cannot write report.md in {run}: No space left on device; finished requests are kept; "
    )
    finished = read_rows(run / "baseline.jsonl")
    assert 0 < len(finished) < 6
    assert mount(small_disk, "remount,size=10m").returncode == 0
    assert skit_here(*command, "--resume").returncode == 0
    assert read_rows(run / "baseline.jsonl")[: len(finished)] == finished
    assert read_object(run / "summary.json")["requests"] == {
        "planned": 6,
        "finished": 6,
        "failed": 0,
    }


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = skit(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    full_disk = "No space left on device"
    assert (
        error_line(done)
        == f"cannot write to standard output: {full_disk}; files of the command are written"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["bench"],
            "skit bench: missing option '--method'; for example: skit bench --method fixed-k",
        ),
        (["bnech"], "no command 'bnech' (did you mean 'bench'?); skit --help lists all commands"),
        (
            ["validate"],
            "skit validate: missing argument 'folder'; skit validate --help shows its options",
        ),
        (
            ["bench", "--method"],
            "skit bench: option '--method' requires an argument; for example: skit bench",
        ),
        (["--nothing"], "skit: no such option: --nothing; skit --help lists all commands"),
        (["load", "--target", "x"], "skit load: no such option: --target"),
        (
            ["bench", "--method", "fixed-k", "--limit", "many"],
            "skit bench: invalid value for '--limit': ",
        ),
        (
            ["list", "methods", "fixed-k", "x"],
            "skit list: got unexpected extra argument(s) (x); skit list --help shows",
        ),
        (["validate", "nowhere"], "nowhere is no run of skit load: name the folder of one"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_what_would_be_right(
    arguments: list[str], line: str
) -> None:
    assert error_line(skit_here(*arguments)).startswith(line)
