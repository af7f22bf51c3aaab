"""Traces to be shared: a licence, optionally no text, and everything else unchanged."""

from pathlib import Path

import numpy as np
import pytest
from command_line import TinyPair, error_line, skit_here, write_rows
from report_builders import run_document
from trace_builders import made_request, made_requests, write_trace

from specbench_kit.core.typed_json import stated
from specbench_kit.decoding.dialogues import Dialogues
from specbench_kit.deployments.loading import load
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.artefact import load as load_predictor
from specbench_kit.predictors.library import PairHashes
from specbench_kit.reports.run.report import setting
from specbench_kit.serving.acceptance_spec import trace_source
from specbench_kit.studies.training.offsets import read_offsets
from specbench_kit.traces.recording import Redactor
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TOKEN_IDS, RequestTrace, TraceFile

WAN = load("wan")
SECRET = "The launch code is 7182"


@pytest.fixture(scope="module")
def pair_of_traces(
    tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TraceFile, TraceFile]:
    """Return the same recording with its text and without it."""
    folder = tmp_path_factory.mktemp("traces")
    turns = {"id": "d", "turns": [SECRET, "And why?"]}
    prompts = write_rows(folder / "prompts.jsonl", turns, {"id": "q", "prompt": SECRET})
    options = ["--dataset", prompts, "--max-new-tokens", 12, "--max-draft", 4, *tiny.options]
    for name, more_options in {
        "plain": [],
        "shared": ["--share", "CC-BY-4.0", "--no-text"],
    }.items():
        done = skit_here("record", *options, "--out", folder / f"{name}.parquet", *more_options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("; without text; to be shared under CC-BY-4.0)\n") is bool(
            more_options
        )
    plain, shared = (TraceFile(folder / f"{name}.parquet") for name in ("plain", "shared"))
    return plain, shared


def test_no_token_of_the_text_is_left(pair_of_traces: tuple[TraceFile, TraceFile]) -> None:
    plain, shared = pair_of_traces
    assert (shared.header.licence, shared.header.lacks) == ("CC-BY-4.0", (TOKEN_IDS,))
    assert plain.header.licence is None
    assert shared.header.run["models"] == plain.header.run["models"]
    for redacted, original in zip(shared, plain, strict=True):
        assert [
            len(part) for part in (redacted.prompt_ids, redacted.output_ids, redacted.continuation)
        ] == [
            len(part) for part in (original.prompt_ids, original.output_ids, original.continuation)
        ]
        assert (
            len({*redacted.prompt_ids}) == len({*redacted.output_ids, *redacted.continuation}) == 1
        )
        assert set(np.unique(redacted.drafted)) <= {0, 1}


def test_a_trace_without_text_learns_replays_and_serves_as_with_it(
    pair_of_traces: tuple[TraceFile, TraceFile],
) -> None:
    """Both traces give the same rounds: only drafts beyond the answer's end could differ, and there are none."""
    plain, shared = pair_of_traces
    for spec in (
        "fixed-k:k=3",
        "threshold:threshold=0.1,max_draft=4",
        "svip:max_draft=4",
        "oracle:max_draft=4",
    ):
        rounds = [
            [
                record.rounds
                for record in replay(
                    prepare_for_replay(method, file, WAN), file.header, file, deployment=WAN
                )
            ]
            for file in (plain, shared)
            for method in [parse_method(spec)]
        ]
        assert rounds[0] == rounds[1]
        assert (
            trace_source(plain, parse_method(spec), WAN).typical
            == trace_source(shared, parse_method(spec), WAN).typical
        )
    from_plain, from_shared = read_offsets(plain), read_offsets(shared)
    for name in (
        "conversation",
        "request",
        "context",
        "remaining",
        "matched",
        "judged",
        "statistics",
    ):
        assert np.array_equal(getattr(from_plain, name), getattr(from_shared, name)), name


def test_turns_stay_together_and_other_prompts_apart() -> None:
    """Turn 2 continues turn 1; `x/1` and `x/2` are separate problems."""
    first = made_request("d/1", 8, (5, 6))
    prompts = {"d/2": (5, 6, *first.output_ids, 8), "x/1": (9, 4), "x/2": (4, 9, 9)}
    requests = [first, *(made_request(name, 8, prompt) for name, prompt in prompts.items())]
    redactor = Redactor()
    redacted = [redactor.redact(request) for request in requests]
    assert redacted[1].prompt_ids[:2] == redacted[0].prompt_ids
    assert len({request.prompt_ids[0] for request in redacted}) == 3
    dialogues = Dialogues()
    numbers = [
        dialogues.index(turn.request_id, turn.prompt_ids, turn.output_ids) for turn in redacted
    ]
    assert numbers == [0, 0, 1, 2], "turns are recognised without their tokens, too"


def test_who_needs_the_text_is_refused(
    pair_of_traces: tuple[TraceFile, TraceFile], tmp_path: Path
) -> None:
    _, shared = pair_of_traces
    replay_options = ["--replay", shared.path, "--out", tmp_path]
    line = error_line(
        skit_here("bench", "--method", "fixed-k:drafter=prompt-lookup", *replay_options)
    )
    assert line.startswith("fixed-k looks tokens up, and this trace has no token ids on record")


def test_a_report_names_the_licence(pair_of_traces: tuple[TraceFile, TraceFile]) -> None:
    _, shared = pair_of_traces
    described = shared.describe()
    line = f"shared.parquet, sha256 {described.sha256[:12]}, licence CC-BY-4.0"
    assert ("trace", line) in setting(
        run_document({"trace": stated(described), "time_kind": "modelled"})
    )


def test_a_predictor_is_trained_for_a_pair_that_is_not_here(tmp_path: Path) -> None:
    def unnamed(trace: RequestTrace) -> RequestTrace:
        return redactor.redact(trace)

    redactor = Redactor()
    trace = write_trace(tmp_path / "bundle.parquet", list(map(unnamed, made_requests(8))))
    options = ["--families", "logistic", "--trials", 1, "--save-to", tmp_path / "mine", "--force"]
    done = skit_here("train-predictor", "--trace", trace.path, *options, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert load_predictor(tmp_path / "mine").pair == PairHashes("a" * 64, "b" * 64)


def test_a_licence_needs_a_name() -> None:
    assert "--share names a licence" in error_line(skit_here("record", "--share", " "))
