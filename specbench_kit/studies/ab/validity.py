"""Answers that should be JSON: which share of each server's is valid, and whether the servers
differ in it.

A unit is a prompt with its repeats and turns, whose answers are alike: with greedy decoding a
repeat mostly says the same once more.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.json_schema import JsonSchema, parse_json
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.tool_calls import CalledTool, Tools, holds_whole_calls, is_arguments
from specbench_kit.decoding.constraint import BY_PROMPT, GrammarSpec
from specbench_kit.live.engines.answers import AnswerRecord, StreamedAnswer
from specbench_kit.metrics.statistics import FEWEST_UNITS, LEVEL, Array
from specbench_kit.metrics.verdicts import NO_DIFFERENCE, TOO_FEW
from specbench_kit.studies.ab.outputs import CHANCE, DRAWS
from specbench_kit.studies.ab.summary import Validity, ValidityComparison

Outcome = Literal["valid", "other JSON", "fenced", "cut", "broken"]
"""What an answer is: valid by its schema, JSON that is not, JSON within a code block, cut at the
longest length, or no JSON.
"""
FENCE = re.compile(r"\s*```\w*\s*(.*?)\s*```\s*", re.DOTALL)
LESS_VALID = "less often valid"
MORE_VALID = "more often valid"
"""The verdicts on the second server where a difference is shown."""


def schemas_of(
    constraint: GrammarSpec | None, prompts: Sequence[Prompt]
) -> tuple[dict[str, str], list[str]]:
    """Return the JSON schema of each prompt that has one, by its id, and what a reader must know.

    With a constraint every prompt has a schema, or SkitError is raised. Without one, schemas of the
    prompts' own that cannot be read are passed over.
    """
    by_prompt = constraint is None or constraint.kind == BY_PROMPT
    schemas = {}
    unread = []
    for prompt in prompts:
        schema = prompt.schema if by_prompt else (constraint.text if constraint else "")
        where = f"prompt '{prompt.id}'" if by_prompt else "--constraint"
        require(
            bool(schema) or constraint is None,
            f"--constraint {BY_PROMPT}: {where} has no field 'schema': give every prompt its JSON schema",
        )
        if not schema:
            continue
        try:
            JsonSchema(schema)
        except SkitError as error:
            if constraint is not None:
                raise SkitError(f"{where}: {error}") from error
            unread.append(f"{where}: {error}")
            continue
        schemas[prompt.id] = schema
    lines = [f"NOT JUDGED: {len(unread)} JSON schemas are not read; {unread[0]}."] if unread else []
    return schemas, lines


def outcome_of(answer: StreamedAnswer, schema: JsonSchema) -> Outcome:
    """Return what an answer is, by its reply as a whole."""
    reply = answer.text if answer.reply is None else answer.reply
    text = (reply or "").strip()
    try:
        return "valid" if schema.allows(parse_json(text)) else "other JSON"
    except ValueError:
        if answer.was_cut:
            return "cut"
    if fenced := FENCE.fullmatch(text):
        try:
            parse_json(fenced[1])
        except ValueError:
            return "broken"
        return "fenced"
    return "broken"


class Judge:
    """Knows the schemas of prompts by their ids, and judges each answer once."""

    def __init__(self, schemas: Mapping[str, str], tools: Mapping[str, str]) -> None:
        self._schemas = {name: JsonSchema(text) for name, text in schemas.items()}
        self._tools = {
            name: Tools(json.loads(text)) for name, text in tools.items() if name not in schemas
        }

    def outcomes(self, records: Sequence[AnswerRecord]) -> dict[str, list[Outcome]]:
        """Return what the answers to each prompt with a schema are."""
        found: defaultdict[str, list[Outcome]] = defaultdict(list)
        for record in records:
            prompt = record.key.request_id
            answer = record.answer
            if answer is None or answer.text is None:
                continue
            if prompt in self._schemas:
                found[prompt].append(outcome_of(answer, self._schemas[prompt]))
            elif prompt in self._tools and (
                outcome := outcome_of_calls(answer, self._tools[prompt])
            ):
                found[prompt].append(outcome)
        return dict(found)


def outcome_of_calls(answer: StreamedAnswer, tools: Tools) -> Outcome | None:
    """Return what the calls of an answer are; None for an answer without any.

    A call that the server did not read as one, such as a broken one, stands in the text.
    """
    text = (answer.text if answer.reply is None else answer.reply) or ""
    in_text = tools.valid_text(text)
    if not answer.calls and in_text is None:
        return None
    read = [tools.is_valid(CalledTool(call.name, call.arguments)) for call in answer.calls]
    if all(read) and in_text is not False:
        return "valid"
    if answer.was_cut:
        return "cut"
    is_json = all(is_arguments(call.arguments) for call in answer.calls) and (
        in_text is None or holds_whole_calls(text)
    )
    return "other JSON" if is_json else "broken"


def validity(outcomes: Mapping[str, Sequence[Outcome]]) -> Validity | None:
    """Return the figures of one server, by what its answers to each prompt are; None for none."""
    every = [outcome for of_prompt in outcomes.values() for outcome in of_prompt]
    if not every:
        return None
    prompts = len(outcomes)
    valid = every.count("valid")
    whole = valid + every.count("other JSON")
    return Validity(
        answers=len(every),
        prompts=prompts,
        json=whole,
        valid=valid,
        cut=every.count("cut"),
        fenced=every.count("fenced"),
        json_share=whole / len(every),
        json_interval=share_interval(whole / len(every), prompts),
        valid_share=valid / len(every),
        valid_interval=share_interval(valid / len(every), prompts),
    )


def share_interval(share: float, units: int, level: float = LEVEL) -> list[float]:
    """Return Wilson's interval of a share over so many units, which has a width at 0 and 1 too."""
    squared = NormalDist().inv_cdf((1 + level) / 2) ** 2
    middle = (share + squared / (2 * units)) / (1 + squared / units)
    half = sqrt(squared * (share * (1 - share) + squared / (4 * units)) / units)
    half /= 1 + squared / units
    return [max(0.0, middle - half), min(1.0, middle + half)]


def compare_validity(
    first: Mapping[str, Sequence[Outcome]], second: Mapping[str, Sequence[Outcome]], loads: int
) -> ValidityComparison | None:
    """Return the comparison over the prompts that both servers answered; None without any."""
    shared = [prompt for prompt in first if prompt in second]
    if not shared:
        return None
    shares = np.array(
        [[own[name].count("valid") / len(own[name]) for name in shared] for own in (first, second)]
    )
    differences = shares[1] - shares[0]
    chance = chance_of_equals(differences)
    level = CHANCE / loads
    if chance < level:
        verdict = LESS_VALID if differences.sum() < 0 else MORE_VALID
    else:
        verdict = TOO_FEW if len(shared) < FEWEST_UNITS else NO_DIFFERENCE
    return ValidityComparison(
        prompts=len(shared),
        first_only=int((differences < 0).sum()),
        second_only=int((differences > 0).sum()),
        chance=chance,
        level=level,
        verdict=verdict,
    )


def chance_of_equals(differences: Array) -> float:
    """Return how likely equal servers differ as much in sum, whose answers to any prompt could have
    been each other's.

    With one answer to each prompt this is McNemar's exact test.
    """
    from scipy.stats import permutation_test

    moved = differences[differences != 0]
    if len(moved) < 2:
        return 1.0
    test = permutation_test(
        (moved,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=DRAWS,
        random_state=0,
    )
    return float(test.pvalue)
