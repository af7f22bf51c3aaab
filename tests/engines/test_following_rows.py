"""Requests of an engine, followed by their tokens: what a proposer makes of steps is what the engine really did."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from batch_engine import BatchEngine, Running
from command_line import TinyPair
from tiny_models import plain_greedy, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.engines.drafter import EngineDrafter
from specbench_kit.engines.options import EngineFacts, EngineOptions
from specbench_kit.engines.rows import EngineRow, FollowedRequest
from specbench_kit.models.catalogue import locate
from specbench_kit.models.pair import load_model
from specbench_kit.runs.directory import RunDirectory

TOKENS = 24
METHODS = [
    "fixed-k:k=3",
    "threshold",
    "suffix",
    "prompt-lookup",
    "autoregressive",
    "fixed-k:k=4,drafter=cascade.k2=2",
]


@pytest.fixture(scope="module")
def answers(tiny: TinyPair) -> list[tuple[list[int], list[int]]]:
    model = load_model(locate(str(tiny.target), "target")).model
    prompts = random_prompts([5, 9, 17, 30, 12, 40], 256, 3)
    with torch.inference_mode():
        return [(prompt, plain_greedy(model, prompt, TOKENS)[0]) for prompt in prompts]


def facts(tiny: TinyPair, **changes: object) -> EngineFacts:
    usual = {
        "engine": "engine",
        "version": "1",
        "target": str(tiny.target),
        "dtype": "float32",
        "device": "cpu",
        "vocabulary": 258,
        "context": 128,
        "batch_size": 4,
        "longest_draft": 4,
        "eos_ids": frozenset[int](),
    }
    return EngineFacts(**(usual | changes))  # type: ignore[arg-type]


def drafter(
    tiny: TinyPair, method: str, out: Path | None = None, **changes: object
) -> EngineDrafter:
    options = EngineOptions(
        method=method, draft=str(tiny.draft), out=out, max_new_tokens=TOKENS, device="cpu"
    )
    return EngineDrafter(facts(tiny, **changes), options)


def running(answers: list[tuple[list[int], list[int]]]) -> list[Running]:
    return [Running(list(prompt), list(answer)) for prompt, answer in answers]


def run_engine(made: EngineDrafter, requests: list[Running], **events: object) -> Path:
    def propose(
        sampled: list[list[int]], counts: np.ndarray, tokens: np.ndarray
    ) -> list[list[int]]:
        rows = [EngineRow(tokens[i, : counts[i]], len(new)) for i, new in enumerate(sampled)]
        return made.speculator.propose(rows)

    BatchEngine(propose, **events).run(requests)  # type: ignore[arg-type]
    folder = made.close()
    assert folder is not None
    return folder


def by_prompt(records: list[RequestRecord]) -> dict[tuple[int, ...], RequestRecord]:
    return {tuple(record.prompt_ids): record for record in records}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("trouble", [0.0, 0.25])
def test_records_tell_what_the_engine_did(
    tiny: TinyPair,
    answers: list[tuple[list[int], list[int]]],
    method: str,
    trouble: float,
    tmp_path: Path,
) -> None:
    requests = running(answers)
    folder = run_engine(drafter(tiny, method, tmp_path), requests, trouble=trouble, chunk=8, seed=5)
    records = by_prompt(RunDirectory.open(folder).records())
    assert len(records) == len(requests)
    for request in requests:
        record = records[tuple(request.prompt)]
        assert record.output_ids == request.answer
        rounds = [(line.accepted, line.accepted + 1) for line in record.rounds]
        assert rounds == request.rounds[: len(rounds)]
        assert sum(line.committed for line in record.rounds) == TOKENS
        assert all(line.accepted <= line.submitted <= line.drafted for line in record.rounds)
        assert record.e2e_s is not None
        assert 0 < record.ttft_s <= record.e2e_s  # type: ignore[operator]


def test_a_draft_model_is_accepted_now_and_then(
    tiny: TinyPair, answers: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    folder = run_engine(drafter(tiny, "fixed-k:k=3", tmp_path), running(answers))
    overhead = RunDirectory.open(folder).run["overhead"]
    assert 0 < overhead["accepted"] < overhead["submitted"] == overhead["drafted"]
    assert overhead["draft_s"] > 0
    assert overhead["total_s"] > overhead["draft_s"] + overhead["policy_s"]


def test_two_requests_with_one_text_are_two_requests(
    tiny: TinyPair, answers: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    requests = running([answers[0], answers[0], answers[1]])
    folder = run_engine(drafter(tiny, "fixed-k:k=3", tmp_path), requests, trouble=0.2, seed=2)
    records = RunDirectory.open(folder).records()
    assert sorted(record.repeat for record in records) == [0, 0, 1]
    assert all(len(record.output_ids) == TOKENS for record in records)


def test_a_request_is_taken_up_again_only_after_steps_that_were_missed() -> None:
    request = FollowedRequest(SimpleNamespace(), np.array([1, 2, 3]), row=0, call=1)
    text = np.array([1, 2, 3, 4, 5])
    assert request.continues_after_gap(EngineRow(text, 1))
    # Two tokens at once that nobody drafted are another request's with the same beginning.
    assert not request.continues(EngineRow(text, 2))
    assert not request.continues_after_gap(EngineRow(text, 2))


def test_a_follow_up_question_is_a_new_request(
    tiny: TinyPair, answers: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    prompt, answer = answers[0]
    first, second = Running(prompt, answer), Running([*prompt, *answer, 7, 8, 9], answers[1][1])
    folder = run_engine(drafter(tiny, "suffix", tmp_path), [first, second], slots=1)
    records = RunDirectory.open(folder).records()
    assert [len(record.prompt_ids) for record in records] == [len(prompt), len(prompt) + TOKENS + 3]


def test_memory_stays_bounded(tiny: TinyPair, answers: list[tuple[list[int], list[int]]]) -> None:
    """Without a known limit of the output nothing shows that a request has ended, and yet only a few are kept."""
    options = EngineOptions(method="fixed-k:k=3", draft=str(tiny.draft), device="cpu")
    engine_drafter = EngineDrafter(facts(tiny, batch_size=2), options)
    requests_followed = []

    def propose(
        sampled: list[list[int]], counts: np.ndarray, tokens: np.ndarray
    ) -> list[list[int]]:
        rows = [EngineRow(tokens[i, : counts[i]], len(new)) for i, new in enumerate(sampled)]
        drafts = engine_drafter.speculator.propose(rows)
        requests_followed.append(len(engine_drafter.speculator._follower.requests))
        return drafts

    BatchEngine(propose, slots=2).run(running([*answers, *answers]))
    assert max(requests_followed) <= 4


def test_requests_beyond_the_draft_kv_are_decoded_without_drafts(
    tiny: TinyPair,
    answers: list[tuple[list[int], list[int]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = EngineOptions(
        method="fixed-k:k=3",
        draft=str(tiny.draft),
        out=tmp_path,
        device="cpu",
        max_new_tokens=TOKENS,
        kv_gib=1e-9,
    )
    engine_drafter, requests = EngineDrafter(facts(tiny), options), running(answers)
    records = by_prompt(RunDirectory.open(run_engine(engine_drafter, requests)).records())
    assert "there is draft KV for 1 of 4 requests" in capsys.readouterr().err
    assert [records[tuple(request.prompt)].output_ids for request in requests] == [
        r.answer for r in requests
    ]
    drafted = [sum(line.drafted > 0 for line in record.rounds) for record in records.values()]
    # All four rows of the batch wait for one slot, so that most rounds of most requests have no draft.
    assert 0 < sum(drafted) < sum(len(record.rounds) for record in records.values()) / 2


def test_an_output_ends_where_the_target_ended_it(tiny: TinyPair, tmp_path: Path) -> None:
    """Tokens of the last round behind the end are no part of the output; a request that goes on had no end."""
    engine_drafter = drafter(tiny, "fixed-k:k=3", tmp_path, eos_ids=frozenset({1}))
    prompt = [50, 51, 52, 53]
    text = np.array([*prompt, 60], dtype=np.int32)
    (draft,) = engine_drafter.speculator.propose([EngineRow(text, 1)])
    text = np.array([*text.tolist(), *draft, 70], dtype=np.int32)
    engine_drafter.speculator.propose([EngineRow(text, len(draft) + 1)])
    text = np.array([*text.tolist(), 1], dtype=np.int32)
    assert engine_drafter.speculator.propose([EngineRow(text, 1)]) == [[]]
    text = np.array([*text.tolist(), 80], dtype=np.int32)
    engine_drafter.speculator.propose([EngineRow(text, 1)])
    folder = engine_drafter.close()
    assert folder is not None
    (record,) = RunDirectory.open(folder).records()
    assert record.output_ids == [*text.tolist()[len(prompt) :]]
    assert (record.rounds[1].submitted, record.rounds[1].accepted) == (3, 3)


def test_an_end_of_sequence_ends_the_record(tiny: TinyPair, tmp_path: Path) -> None:
    engine_drafter = drafter(tiny, "suffix", tmp_path, eos_ids=frozenset({1}))
    for tokens, new in (([50, 51, 60], 1), ([50, 51, 60, 61], 1), ([50, 51, 60, 61, 1], 1)):
        engine_drafter.speculator.propose([EngineRow(np.array(tokens, dtype=np.int32), new)])
    engine_drafter.speculator.propose([EngineRow(np.array([9, 9, 9, 3], dtype=np.int32), 1)])
    folder = engine_drafter.close()
    assert folder is not None
    first, second = RunDirectory.open(folder).records()
    assert (first.output_ids, first.finish_reason) == ([60, 61, 1], "eos")
    assert (second.output_ids, second.finish_reason) == ([3], "length")


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("specinfer", "drafts trees, and engine verifies chains alone"),
        ("specpipe", "fills a pipeline"),
        ("oracle", "reads the target's answer"),
        ("fixed-k:drafter=head", "does not hand these to a drafter"),
        ("adaspec", "plans with the latencies of engine"),
        ("no-such", "unknown method"),
    ],
)
def test_what_an_engine_does_not_give_is_refused_in_one_line(
    tiny: TinyPair, method: str, problem: str
) -> None:
    with pytest.raises(SkitError, match=problem) as refusal:
        drafter(tiny, method)
    assert "\n" not in str(refusal.value)


def test_a_deployment_gives_the_latencies_that_a_method_plans_with(
    tiny: TinyPair, answers: list[tuple[list[int], list[int]]]
) -> None:
    options = EngineOptions(
        method="adaspec", draft=str(tiny.draft), device="cpu", deployment="specedge"
    )
    engine_drafter, requests = EngineDrafter(facts(tiny), options), running(answers[:2])
    BatchEngine(
        lambda new, counts, tokens: engine_drafter.speculator.propose(
            [EngineRow(tokens[i, : counts[i]], len(row)) for i, row in enumerate(new)]
        )
    ).run(requests)
    assert engine_drafter.speculator.overhead.rounds > 0


def test_options_come_from_a_file_and_from_variables(tmp_path: Path) -> None:
    file = tmp_path / "drafts.toml"
    file.write_text('method = "threshold:max_draft=6"\nrecords = 5\nkv-gib = 0.5\n')
    options = EngineOptions.from_environment(
        {"SKIT_OPTIONS": str(file), "SKIT_RECORDS": "7", "SKIT_HOME": "x"}
    )
    assert (options.method, options.records, options.kv_gib) == ("threshold:max_draft=6", 7, 0.5)
    file.write_text("colour = 1\n")
    with pytest.raises(SkitError, match="unknown option 'colour'; known: method, draft"):
        EngineOptions.from_environment({"SKIT_OPTIONS": str(file)})
    with pytest.raises(SkitError, match="cannot read"):
        EngineOptions.from_environment({"SKIT_OPTIONS": str(tmp_path / "missing.toml")})
    with pytest.raises(SkitError, match="SKIT_KV_GIB must be above 0"):
        EngineOptions.from_environment({"SKIT_KV_GIB": "0"})
