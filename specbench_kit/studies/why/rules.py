"""What makes speculation slow, or is odd: one rule for each, which names the numbers that it needs.

A rule is a function whose parameters are names of `Numbers`. It is called where all of these are known, and returns
what it found, or None. A new rule is a new function here, and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import NamedTuple

from specbench_kit.reports.writing.formatting import seconds, share, significant, times
from specbench_kit.studies.why.summary import (
    Measured,
    NotLookedAt,
    Numbers,
    Severity,
    SpeedFinding,
)


class Remark(NamedTuple):
    """What a rule says: how grave it is, which number it rests on, what was found, and what to try."""

    severity: Severity
    about: str
    sentence: str
    advice: str


Check = Callable[..., Remark | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the names of the numbers that it needs."""

    name: str
    looks_for: str
    needs: Sequence[str]
    check: Check


RULES: dict[str, Rule] = {}
"""All rules by their names."""


def rule(check: Check) -> Check:
    """Add a function to the rules; its docstring says what it looks for."""
    name = check.__name__.replace("_", "-")
    looks_for = (check.__doc__ or "").strip().removeprefix("Look for ").rstrip(".")
    RULES[name] = Rule(name, looks_for, tuple(signature(check).parameters), check)
    return check


def apply_rules(
    numbers: Numbers, missing: Mapping[str, str]
) -> tuple[list[SpeedFinding], list[NotLookedAt]]:
    """Return what the rules find, the gravest first, and the rules that lack a number."""
    findings: list[SpeedFinding] = []
    left_out: list[NotLookedAt] = []
    for entry in RULES.values():
        values: dict[str, Measured | None] = {name: getattr(numbers, name) for name in entry.needs}
        known = {name: value.value for name, value in values.items() if value is not None}
        lacking = [name for name in entry.needs if name not in known]
        if lacking:
            left_out.append(NotLookedAt(entry.name, entry.looks_for, missing.get(lacking[0], "")))
            continue
        remark = entry.check(**known)
        if remark is not None:
            about = values[remark.about]
            assert about is not None
            findings.append(
                SpeedFinding(
                    entry.name,
                    remark.severity,
                    remark.sentence,
                    remark.about,
                    about.value,
                    about.source,
                    remark.advice,
                )
            )
    order: Sequence[Severity] = ("fault", "cost", "note")
    return sorted(findings, key=lambda finding: order.index(finding.severity)), left_out


MANY = 50
"""Drafted tokens from which a rate of acceptance is more than chance."""
NEAR_ZERO = 0.05
"""Share of accepted tokens up to which a drafter is broken: a bad one that works is far above it."""
FLAWLESS = 0.99
LOOP = 0.3
"""Share of repeated text from which an answer runs in circles."""
POOLED = 0.1
"""By how much, relative to each other, means over tokens and over requests differ noticeably."""
RISE = 0.05
FALL = 0.5
"""Later acceptance above the first by this much is selection; below this share of it, the drafter fails later on."""
BEHIND_END = 0.05
OFF_COSTS = 0.05
SLOW_DRAFT = 0.5
"""Time of drafting a token, in plain tokens, from which hardly any acceptance pays for it."""
LARGE_PART = 0.3
WIDE = 0.25
"""What one more verified token adds, in plain tokens, from which a forward is bound by computing."""
SHORTER = 1.05
"""How many times as fast another draft length has to be to be named."""


@rule
def broken_drafter(acceptance_rate: float, drafted: float) -> Remark | None:
    """Look for a drafter whose tokens are hardly ever accepted."""
    if drafted < MANY or acceptance_rate > NEAR_ZERO:
        return None
    return Remark(
        "fault",
        "acceptance_rate",
        f"**The drafter is broken**: {share(acceptance_rate)} of {drafted:,.0f} drafted tokens were accepted. It "
        "fails in silence: outputs stay right, and every draft is lost time.",
        "Ask the drafter by itself for a sentence. Check that its weights are whole and belong to this target (same "
        "family, same tokenizer, head of the same version), and try it in 16 bits in place of a quantised file.",
    )


@rule
def flawless_drafter(
    acceptance_rate: float, drafted: float, repeated_share: float
) -> Remark | None:
    """Look for acceptance that is too good."""
    if drafted < MANY or acceptance_rate < FLAWLESS or repeated_share >= LOOP:
        return None
    return Remark(
        "note",
        "acceptance_rate",
        f"**Acceptance is too good**: {share(acceptance_rate)} of {drafted:,.0f} drafted tokens were accepted.",
        "Is the draft model the target itself, or a copy of it in other bits? Then a round costs more than it saves. "
        "Measure with prompts of your own traffic before you quote the number.",
    )


@rule
def looping_text(repeated_share: float) -> Remark | None:
    """Look for answers that repeat themselves, which any drafter foresees."""
    if repeated_share < LOOP:
        return None
    return Remark(
        "note",
        "repeated_share",
        f"**The answers run in circles**: {share(repeated_share)} of their text repeats what they said before. "
        "Acceptance on such text says nothing about other text.",
        "Ask in the model's chat template (a kind that ends in -chat), with your own prompts, or for shorter answers.",
    )


@rule
def pooled_means(tokens_per_round: float, tokens_per_round_by_request: float) -> Remark | None:
    """Look for means over all rounds and over requests that differ."""
    if abs(tokens_per_round_by_request / tokens_per_round - 1) < POOLED:
        return None
    return Remark(
        "note",
        "tokens_per_round_by_request",
        f"**Two means differ**: {significant(tokens_per_round)} tokens per round over all rounds, "
        f"{significant(tokens_per_round_by_request)} as the mean of the requests. Neither is wrong: requests with many "
        "rounds weigh more in the first, which is the one that throughput follows.",
        "Compare with numbers of others by the same mean.",
    )


@rule
def selected_positions(first_acceptance: float, later_acceptance: float) -> Remark | None:
    """Look for later tokens of a draft that are accepted more often than the first."""
    if later_acceptance - first_acceptance < RISE:
        return None
    return Remark(
        "note",
        "later_acceptance",
        f"**The first place of a draft looks worst**: {share(first_acceptance)} there, {share(later_acceptance)} at "
        "later places once all before were accepted. That is selection and no fault: only easy texts reach them.",
        "Do not mend the first step for it. Drafting longer where the drafter is sure may pay.",
    )


@rule
def failing_positions(first_acceptance: float, later_acceptance: float) -> Remark | None:
    """Look for a drafter that fails after its first token."""
    if first_acceptance < 2 * NEAR_ZERO or later_acceptance > FALL * first_acceptance:
        return None
    return Remark(
        "fault",
        "later_acceptance",
        f"**The drafter fails after its first token**: {share(first_acceptance)} of the first ones are accepted, and "
        f"{share(later_acceptance)} of later ones although all before them were right.",
        "A head that was trained for one step, or that gets wrong hidden states or positions, does this. Draft one "
        "token, or train it on several steps.",
    )


@rule
def tokens_behind_end(unsent_share: float) -> Remark | None:
    """Look for drafts that go on behind the end of answers."""
    if unsent_share < BEHIND_END:
        return None
    return Remark(
        "note",
        "unsent_share",
        f"**Drafts reach behind the end of answers**: {share(unsent_share)} of what rounds committed was never sent, "
        "so that the server's own acceptance length is too high by as much.",
        "Count tokens that arrived. With answers as short as these, draft fewer tokens.",
    )


@rule
def never_drafts(drafted: float, rounds: float) -> Remark | None:
    """Look for a server that drafts nothing."""
    if drafted or rounds < MANY:
        return None
    return Remark(
        "note",
        "drafted",
        f"**Nothing was drafted** in {rounds:,.0f} rounds: speculation is off, or its drafter never finds anything.",
        "Look into the server's log for the drafter. N-grams and suffixes draft only where text repeats.",
    )


@rule
def costs_when_off(
    undrafted_s: float, plain_server_s: float, undrafted_ratio: float
) -> Remark | None:
    """Look for rounds without a draft that take longer than a server without speculation."""
    if undrafted_ratio < 1 + OFF_COSTS:
        return None
    return Remark(
        "cost",
        "undrafted_ratio",
        f"**Speculation costs where it drafts nothing**: a round without a draft takes {seconds(undrafted_s)}, a token "
        f"of the server without speculation {seconds(plain_server_s)}: {times(undrafted_ratio)}. The "
        "drafter reads along, or the engine takes a slower path.",
        "Send requests that draft nothing, such as those of a full batch, to a server without speculation.",
    )


@rule
def slow_drafter(draft_token_s: float, plain_s: float) -> Remark | None:
    """Look for a drafter that is nearly as slow as the target."""
    if draft_token_s < SLOW_DRAFT * plain_s:
        return None
    slower = "more than" if draft_token_s > plain_s else "against"
    return Remark(
        "cost",
        "draft_token_s",
        f"**The drafter is too slow**: drafting a token takes {seconds(draft_token_s)}, {slower} the "
        f"{seconds(plain_s)} of a whole token of the target.",
        "Give the drafter the same device, threads and precision as the target, or take a smaller one.",
    )


@rule
def drafting_dominates(drafting_s: float, round_s: float) -> Remark | None:
    """Look for rounds that are mostly drafting."""
    if drafting_s < LARGE_PART * round_s:
        return None
    return Remark(
        "cost",
        "drafting_s",
        f"**Drafting is {share(drafting_s / round_s)} of a round**: {seconds(drafting_s)} of {seconds(round_s)}.",
        "A smaller drafter, a head on the target's own features, n-grams, or shorter drafts.",
    )


@rule
def wide_verification(verified_token_s: float, plain_s: float) -> Remark | None:
    """Look for verification whose time grows with the draft."""
    if verified_token_s < WIDE * plain_s:
        return None
    return Remark(
        "cost",
        "verified_token_s",
        f"**Verification is not for free here**: each token more in a forward adds {seconds(verified_token_s)}, "
        f"{share(verified_token_s / plain_s)} of a plain token. The device is bound by computing, as processors and "
        "full batches are, and not by reading weights.",
        "Draft few tokens, and only likely ones.",
    )


@rule
def large_rest(other_s: float, round_s: float) -> Remark | None:
    """Look for time of a round that is neither drafting nor verification."""
    if other_s < LARGE_PART * round_s:
        return None
    return Remark(
        "cost",
        "other_s",
        f"**{share(other_s / round_s)} of a round is neither drafting nor verification**: {seconds(other_s)} of "
        f"{seconds(round_s)}, in the host, in launches, on the way, or in a drafter that reads along.",
        "On a GPU: CUDA graphs for draft and verification, and asynchronous scheduling. Elsewhere: fewer rounds, or a "
        "drafter that keeps no cache of its own, such as n-grams.",
    )


@rule
def below_break_even(
    tokens_per_round: float, break_even: float, speedup_at_most: float
) -> Remark | None:
    """Look for fewer tokens per round than pay for it."""
    if tokens_per_round >= break_even or speedup_at_most >= 1:
        return None
    return Remark(
        "cost",
        "break_even",
        f"**Rounds are too dear for what they bring**: one takes as long as {significant(break_even)} plain tokens and "
        f"brings {significant(tokens_per_round)}.",
        "Either switch speculation off, or lower what a round costs: the parts of a round say where.",
    )


@rule
def other_length(
    best_length: float, best_length_gain: float, drafted_per_round: float, speedup_at_most: float
) -> Remark | None:
    """Look for a draft length that would be faster."""
    if best_length_gain < SHORTER or round(drafted_per_round) == best_length:
        return None
    if best_length == 0 and speedup_at_most >= 1:
        return None
    what = (
        "no draft at all"
        if best_length == 0
        else f"{best_length:.0f} drafted token{'s' * (best_length > 1)}"
    )
    return Remark(
        "cost",
        "best_length_gain",
        f"**Another draft length is faster**: {what} in place of {significant(drafted_per_round)} a round would be "
        f"{times(best_length_gain)} as fast by these numbers.",
        "llama.cpp: --draft-max; vLLM: num_speculative_tokens; SGLang: --speculative-num-steps.",
    )


@rule
def hurts_together(
    concurrency: float, speedup: float, speedup_together: float, speedup_together_at_most: float
) -> Remark | None:
    """Look for speculation that hurts only when several requests are in flight."""
    if speedup_together_at_most >= 1 or speedup <= speedup_together:
        return None
    alone = "pays for one request and" if speedup > 1 else "gains nothing for one request, and"
    return Remark(
        "cost",
        "speedup_together",
        f"**It {alone} loses under load**: {times(speedup)} for one request, {times(speedup_together)} with "
        f"{concurrency:.0f} in flight, as rows of a batch leave less room for drafted tokens.",
        "Draft less in larger batches, or nothing (vLLM: num_speculative_tokens_per_batch_size).",
    )
