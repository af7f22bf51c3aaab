"""Drafts inside an engine whose requests follow a grammar, or were said to and do not."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llguidance")

import torch
from batch_engine import BatchEngine, Running
from command_line import TinyPair
from test_following_rows import by_prompt, facts
from tiny_models import plain_logits, random_prompts
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.engines.drafter import EngineDrafter
from specbench_kit.engines.options import EngineOptions
from specbench_kit.engines.rows import EngineRow
from specbench_kit.models.catalogue import locate
from specbench_kit.models.pair import load_model
from specbench_kit.runs.directory import RunDirectory

END = 1
GRAMMAR = "regex:[a-f]{4}-name-[0-9]{3}-of-[a-f]{5}"
PLACES = ["abcdef"] * 4 + [*"-name-"] + ["0123456789"] * 3 + [*"-of-"] + ["abcdef"] * 5
"""The characters that the grammar allows, one place of an output after the other."""
FORCED = sum(len(characters) == 1 for characters in PLACES)


@pytest.fixture(scope="module")
def places(tiny: TinyPair) -> list[set[int]]:
    """The tokens that the grammar allows at each place of an output, the end included."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    ids = [set(tokenizer.convert_tokens_to_ids([*characters])) for characters in PLACES]
    return [*ids, {END}]


@pytest.fixture(scope="module")
def answers(tiny: TinyPair, places: list[set[int]]) -> list[tuple[list[int], list[int]]]:
    """Prompts, and what the target writes after them where the engine masks it."""
    model = load_model(locate(str(tiny.target), "target")).model
    pairs = []
    with torch.inference_mode():
        for prompt in random_prompts([5, 9, 17, 30, 12, 40], 256, 3):
            answer: list[int] = []
            for allowed in places:
                logits = plain_logits(model, [*prompt, *answer])[-1]
                answer.append(max(allowed, key=lambda token: float(logits[token])))
            pairs.append((prompt, answer))
    return pairs


def drafter(tiny: TinyPair, method: str, out: Path | None, constraint: str | None) -> EngineDrafter:
    options = EngineOptions(
        method=method,
        draft=str(tiny.draft),
        out=out,
        max_new_tokens=len(PLACES) + 1,
        device="cpu",
        constraint=constraint,
    )
    return EngineDrafter(facts(tiny, eos_ids=frozenset({END})), options)


def run_engine(
    made: EngineDrafter, requests: Sequence[Running], trouble: float = 0.0
) -> list[list[int]]:
    """Decode the requests, and return each draft with its first token's place in front."""
    drafts: list[list[int]] = []

    def propose(
        sampled: list[list[int]], counts: np.ndarray, tokens: np.ndarray
    ) -> list[list[int]]:
        texts = [tokens[row, : counts[row]] for row in range(len(sampled))]
        proposed = made.speculator.propose(
            [EngineRow(text, len(new)) for text, new in zip(texts, sampled, strict=True)]
        )
        for text, draft in zip(texts, proposed, strict=True):
            prompt = next(r.prompt for r in requests if r.text == text.tolist())
            if draft:
                drafts.append([len(text) - len(prompt), *draft])
        return proposed

    BatchEngine(propose, chunk=8, trouble=trouble, seed=5).run(requests)
    return drafts


@pytest.mark.parametrize("trouble", [0.0, 0.25])
@pytest.mark.parametrize("method", ["fixed-k:k=3", "suffix", "fixed-k:k=4,drafter=grammar"])
def test_no_draft_is_forbidden_and_the_record_says_that_the_output_is_valid(
    tiny: TinyPair,
    places: list[set[int]],
    answers: list[tuple[list[int], list[int]]],
    method: str,
    trouble: float,
    tmp_path: Path,
) -> None:
    requests = [Running(list(prompt), list(answer)) for prompt, answer in answers]
    made = drafter(tiny, method, tmp_path, GRAMMAR)
    drafts = run_engine(made, requests, trouble)
    assert len(drafts) > len(requests)
    for place, *draft in drafts:
        # Behind an end nothing can be accepted, and a grammar says nothing.
        kept = draft[: draft.index(END) + 1] if END in draft else draft
        assert all(token in places[place + i] for i, token in enumerate(kept))
    folder = made.close()
    assert folder is not None
    run = RunDirectory.open(folder)
    records = by_prompt(run.records())
    for request in requests:
        record = records[tuple(request.prompt)]
        assert record.output_ids == request.answer
        assert record.grammar == "valid"
        assert not any(line.forbidden for line in record.rounds)
    config = run.document.config
    assert (config.constraint, config.skip_forced) == (GRAMMAR, False)


def test_the_drafter_of_forced_tokens_is_always_right(
    tiny: TinyPair, answers: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    requests = [Running(list(prompt), list(answer)) for prompt, answer in answers]
    made = drafter(tiny, "fixed-k:k=4,drafter=grammar", tmp_path, GRAMMAR)
    run_engine(made, requests)
    folder = made.close()
    assert folder is not None
    rounds = [line for record in RunDirectory.open(folder).records() for line in record.rounds]
    accepted = sum(line.accepted for line in rounds)
    assert (
        accepted == sum(line.submitted for line in rounds) == sum(r.forced_accepted for r in rounds)
    )
    assert FORCED * len(requests) / 2 < accepted <= FORCED * len(requests)


def test_an_output_that_leaves_the_grammar_is_drafted_for_as_any_other(
    tiny: TinyPair, answers: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    """The first requests end as the others do, but leave the grammar in the middle."""
    wrong = answers[-1][1][3]
    leaving = [
        (prompt, [*answer[:7], wrong, *([wrong, wrong + 1] * 6), END])
        for prompt, answer in answers[:3]
    ]
    requests = [Running(list(prompt), list(answer)) for prompt, answer in [*leaving, *answers[3:]]]
    made = drafter(tiny, "suffix", tmp_path, GRAMMAR)
    run_engine(made, requests)
    folder = made.close()
    assert folder is not None
    records = by_prompt(RunDirectory.open(folder).records())
    for request, outcome in zip(requests, ["invalid"] * 3 + ["valid"] * 3, strict=True):
        record = records[tuple(request.prompt)]
        assert (record.output_ids, record.grammar) == (request.answer, outcome)
    first = records[tuple(requests[0].prompt)]
    assert sum(line.accepted for line in first.rounds[8:]) > 0


@pytest.mark.parametrize(
    ("method", "constraint", "problem"),
    [
        ("suffix", "dataset", "SKIT_CONSTRAINT: an engine does not say which prompt"),
        ("suffix", "regex:[a-", "SKIT_CONSTRAINT: not a valid regex"),
        ("suffix", "lark:missing.lark", "SKIT_CONSTRAINT lark: cannot read 'missing.lark'"),
        ("suffix", "yaml:x", "SKIT_CONSTRAINT takes json-schema:FILE"),
        ("fixed-k:drafter=grammar", None, "drafts what a grammar forces: name it in SKIT_CONST"),
    ],
)
def test_a_grammar_that_cannot_be_meant_is_refused_in_one_line(
    tiny: TinyPair, method: str, constraint: str | None, problem: str
) -> None:
    with pytest.raises(SkitError, match=problem.replace("[", r"\[")) as refusal:
        drafter(tiny, method, None, constraint)
    assert "\n" not in str(refusal.value)
