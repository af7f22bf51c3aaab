"""The content of `summary.json` of a run of `skit why`: a verdict, the numbers, and the findings."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from specbench_kit.core.typed_json import Count, Number

Outcome = Literal["pays", "does not pay", "cannot tell"]
Severity = Literal["fault", "cost", "note"]
"""A fault is to be mended, a cost can be made smaller, and a note keeps a reader from a wrong conclusion."""
Unit = Literal["count", "number", "share", "seconds", "times"]


class Measured(Struct, frozen=True):
    """A number, and where it comes from."""

    value: Annotated[Number, Meta(description="the number, in seconds if it is a time")]
    source: Annotated[str, Meta(description="where the number comes from, in words")]


Known = Measured | None


class Numbers(Struct, frozen=True, kw_only=True):
    """What was measured; null stands for what this server or these results do not tell.

    A round is one forward of the target after the prompt's, with a draft or without one.
    """

    requests: Annotated[Known, Meta(description="answers that were timed")] = None
    rounds: Annotated[Known, Meta(description="rounds of these answers")] = None
    drafted: Annotated[Known, Meta(description="drafted tokens")] = None
    accepted: Annotated[Known, Meta(description="accepted tokens")] = None
    acceptance_rate: Annotated[
        Known, Meta(description="share of the drafted tokens that were accepted")
    ] = None
    tokens_per_round: Annotated[
        Known, Meta(description="tokens of the answers per round, over all answers")
    ] = None
    tokens_per_round_by_request: Annotated[
        Known, Meta(description="tokens per round of each answer, averaged over the answers")
    ] = None
    drafted_per_round: Annotated[Known, Meta(description="drafted tokens per round")] = None
    first_acceptance: Annotated[
        Known, Meta(description="share of the rounds that accepted their first drafted token")
    ] = None
    later_acceptance: Annotated[
        Known,
        Meta(
            description="share of drafted tokens after the first that were accepted where all before them were"
        ),
    ] = None
    token_s: Annotated[Known, Meta(description="time of a token with speculation")] = None
    round_s: Annotated[Known, Meta(description="time of a round")] = None
    plain_s: Annotated[Known, Meta(description="time of a token without speculation")] = None
    speedup: Annotated[
        Known, Meta(description="time without speculation over time with it, per token")
    ] = None
    speedup_at_most: Annotated[
        Known, Meta(description="upper end of the 95% interval of the speedup over prompts")
    ] = None
    break_even: Annotated[
        Known, Meta(description="tokens per round from which on speculation pays")
    ] = None
    undrafted_s: Annotated[
        Known, Meta(description="time of a round without a draft at the server that speculates")
    ] = None
    plain_server_s: Annotated[
        Known, Meta(description="time of a token at the server without speculation")
    ] = None
    undrafted_ratio: Annotated[
        Known,
        Meta(
            description="that time over a token of the server without speculation, where it differs"
        ),
    ] = None
    drafted_token_s: Annotated[
        Known, Meta(description="what a drafted token adds to a round, its verification included")
    ] = None
    verified_token_s: Annotated[
        Known, Meta(description="what one more token adds to a forward of the target")
    ] = None
    draft_token_s: Annotated[Known, Meta(description="time of drafting one token")] = None
    verification_s: Annotated[
        Known, Meta(description="part of a round: the target's forward over the draft")
    ] = None
    drafting_s: Annotated[Known, Meta(description="part of a round: drafting")] = None
    other_s: Annotated[
        Known,
        Meta(
            description="part of a round: what is neither, such as the host, or a drafter that reads along"
        ),
    ] = None
    best_length: Annotated[
        Known, Meta(description="draft length that is fastest by these numbers; 0 for none")
    ] = None
    best_length_gain: Annotated[
        Known, Meta(description="how many times as fast that length is as the present one")
    ] = None
    unsent_share: Annotated[
        Known,
        Meta(description="share of the committed tokens that lie behind the end of an answer"),
    ] = None
    repeated_share: Annotated[
        Known,
        Meta(description="share of the answers' text that repeats what the answer said before"),
    ] = None
    concurrency: Annotated[
        Known, Meta(description="most requests that were in flight together")
    ] = None
    speedup_together: Annotated[
        Known, Meta(description="speedup with so many requests in flight together")
    ] = None
    speedup_together_at_most: Annotated[
        Known, Meta(description="upper end of the 95% interval of that speedup over prompts")
    ] = None


class ObservedAnswer(Struct, frozen=True):
    """One timed answer."""

    server: Annotated[str, Meta(description="name of the server that gave it")]
    request_id: Annotated[str, Meta(description="id of the prompt")]
    tokens: Annotated[Count, Meta(description="tokens that arrived")]
    decode_s: Annotated[Number, Meta(description="seconds from the first token to the last")]
    rounds: Annotated[
        Count | None, Meta(description="rounds after the first token; null if they are not known")
    ] = None
    ttft_s: Annotated[
        Number | None, Meta(description="seconds to the first token; null if unknown")
    ] = None
    drafted: Annotated[
        Count | None, Meta(description="drafted tokens; null if that is not known")
    ] = None
    accepted: Annotated[
        Count | None, Meta(description="accepted tokens; null if that is not known")
    ] = None
    accepted_first: Annotated[
        Count | None,
        Meta(description="rounds that accepted their first drafted token; null if not known"),
    ] = None
    ended: Annotated[bool, Meta(description="whether the model ended it itself")] = False
    repeated: Annotated[
        Number | None,
        Meta(description="share of its text that repeats earlier text; null without a text"),
    ] = None
    probe: Annotated[
        str,
        Meta(
            description="'length' for one that was cut short to vary the draft, 'width' for one that "
            "timed a forward over a few tokens; empty for a whole answer"
        ),
    ] = ""
    width: Annotated[
        Count | None,
        Meta(description="new tokens of the prompt; null for all but probes of the width"),
    ] = None
    concurrency: Annotated[Count, Meta(description="requests that were in flight together")] = 1
    drafting_s: Annotated[
        Number | None, Meta(description="seconds of drafting; null if it was not timed by itself")
    ] = None
    verification_s: Annotated[
        Number | None,
        Meta(description="seconds of verification; null if it was not timed by itself"),
    ] = None


class SpeedFinding(Struct, frozen=True):
    """One reason for which speculation is fast or slow, or one thing that is odd."""

    rule: Annotated[str, Meta(description="name of the rule that found it")]
    severity: Annotated[
        Severity,
        Meta(description="a fault to be mended, a cost to be lowered, or a note on how to read it"),
    ]
    sentence: Annotated[str, Meta(description="what was found")]
    about: Annotated[str, Meta(description="name of the number that it rests on")]
    number: Annotated[Number, Meta(description="that number")]
    source: Annotated[str, Meta(description="where the number comes from")]
    advice: Annotated[str, Meta(description="what to try")]


class NotLookedAt(Struct, frozen=True):
    """A rule that could not be applied."""

    rule: Annotated[str, Meta(description="name of the rule")]
    looks_for: Annotated[str, Meta(description="what the rule looks for")]
    because: Annotated[str, Meta(description="the number that is missing, and why")]


class LoadFigures(Struct, frozen=True):
    """Both servers with some requests in flight together."""

    concurrency: Annotated[Count, Meta(description="requests in flight together")]
    token_s: Annotated[Number, Meta(description="seconds per token with speculation")]
    plain_token_s: Annotated[
        Number | None,
        Meta(description="seconds per token without speculation; null if it was not measured"),
    ] = None
    tokens_per_round: Annotated[
        Number | None, Meta(description="tokens per round; null if rounds are not known")
    ] = None


class WhySummary(Struct, frozen=True, kw_only=True):
    """Why speculation is fast or slow: the verdict, the findings, and all numbers."""

    outcome: Annotated[Outcome, Meta(description="whether speculation pays")]
    interval: Annotated[
        list[Number] | None,
        Meta(description="95% interval of the speedup over prompts; null if there are too few"),
    ] = None
    reason: Annotated[
        str, Meta(description="why it cannot be told whether it pays; empty if it can")
    ] = ""
    servers: Annotated[
        list[str],
        Meta(description="names: the one without speculation, if there is one, comes first"),
    ]
    numbers: Annotated[Numbers, Meta(description="the numbers")]
    missing: Annotated[
        dict[str, str], Meta(description="why a number is not known, by its name")
    ] = {}
    accepted_at: Annotated[
        list[Number],
        Meta(
            description="share of the rounds with a draft that accepted the token at each place; empty if unknown"
        ),
    ] = []
    findings: Annotated[list[SpeedFinding], Meta(description="the findings, faults first")] = []
    not_looked_at: Annotated[
        list[NotLookedAt], Meta(description="rules that could not be applied")
    ] = []
    loads: Annotated[
        list[LoadFigures], Meta(description="several requests in flight together")
    ] = []
    answers: Annotated[
        list[ObservedAnswer], Meta(description="the timed answers, warm-up left out")
    ] = []
    cautions: Annotated[list[str], Meta(description="what limits these numbers")] = []
