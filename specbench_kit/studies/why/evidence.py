"""Timed answers, and the numbers that follow from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from specbench_kit.metrics.statistics import FEWEST_UNITS, Array, Ratio
from specbench_kit.studies.why.summary import (
    Known,
    LoadFigures,
    Measured,
    Numbers,
    ObservedAnswer,
)

WINDOW = 8
"""Tokens, or words, in a row that do not come twice in one answer by chance."""
FEWEST_PROBES = 6
"""Answers over which a line is laid through times."""
LEAST_SPREAD = 0.3
"""Standard deviation of the drafted tokens per round, in tokens, below which their price cannot be told."""
ERRORS = 2.0
"""Standard errors by which a slope has to differ from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that was observed.

    `servers` names the server without speculation, if there is one, and then the other one. `accepted_at` counts
    accepted tokens by their place in the draft, over `drafts` rounds with a draft. `missing` says why a number is not
    known where the way of measuring decides that.
    """

    servers: Sequence[str]
    answers: Sequence[ObservedAnswer]
    counted: str
    clock: str = "the client's clock"
    accepted_at: Sequence[float] = ()
    drafts: float = 0.0
    missing: Mapping[str, str] = field(default_factory=dict)
    cautions: Sequence[str] = ()

    @property
    def speculating(self) -> str:
        """The name of the server that speculates."""
        return self.servers[-1]

    @property
    def base(self) -> int:
        """The fewest requests in flight together under which the server was asked."""
        return min((answer.concurrency for answer in self.answers), default=1)

    def chosen(self, server: str, probe: str = "", concurrency: int = 0) -> list[ObservedAnswer]:
        """Return the answers of a server with a decoding time, whole ones unless a probe is named."""
        answers = self._answered(server, probe, concurrency)
        return [answer for answer in answers if probe == "width" or answer.decode_s > 0]

    def counted_answers(self, probe: str = "", concurrency: int = 0) -> list[ObservedAnswer]:
        """Return those answers of the speculating server whose rounds are known."""
        answers = self.chosen(self.speculating, probe, concurrency)
        return [answer for answer in answers if answer.rounds]

    def whole_answers(self) -> list[ObservedAnswer]:
        """Return the whole answers of the speculating server, also those that came in one piece:
        they have no decoding time, but counts as any other.
        """
        return self._answered(self.speculating, "", 0)

    def _answered(self, server: str, probe: str, concurrency: int) -> list[ObservedAnswer]:
        concurrency = concurrency or self.base
        return [
            answer
            for answer in self.answers
            if (answer.server, answer.probe, answer.concurrency) == (server, probe, concurrency)
            and (probe == "width" or answer.tokens > 1)
        ]


@dataclass(frozen=True, slots=True)
class Figures:
    """What evidence comes to."""

    numbers: Numbers
    missing: Mapping[str, str]
    accepted_at: Sequence[float]
    loads: Sequence[LoadFigures]
    interval: Sequence[float] | None


def repeated_share(tokens: Sequence[object]) -> float | None:
    """Return the share of the windows of a text that stood in it before; None for a short text."""
    windows = [tuple(tokens[at : at + WINDOW]) for at in range(len(tokens) - WINDOW + 1)]
    return 1 - len(set(windows)) / len(windows) if windows else None


@dataclass(frozen=True, slots=True)
class _Line:
    """What a token more adds to a time, and what is left without any."""

    slope: float
    rest: float


def figures_of(evidence: Evidence) -> Figures:
    """Return all numbers that the evidence tells, and why it does not tell the others."""
    known: dict[str, Known] = {}
    missing: dict[str, str] = {}
    _add_counts(evidence, known)
    _add_times(evidence, known, missing)
    _add_prices(evidence, known, missing)
    _add_parts(evidence, known)
    shares = [count / evidence.drafts for count in evidence.accepted_at] if evidence.drafts else []
    _add_positions(evidence, known, shares)
    loads = list(_loads(evidence))
    _add_loads(evidence, known, loads)
    interval = _interval_of(_speedup(evidence))
    if interval is not None:
        known["speedup_at_most"] = Measured(interval[1], OVER_PROMPTS)
    known = {
        name: Measured(float(number.value), number.source)
        for name, number in known.items()
        if number is not None
    }
    reasons = {**REASONS, **missing, **evidence.missing}
    return Figures(
        Numbers(**known),
        {name: reasons[name] for name in Numbers.__struct_fields__ if name not in known},
        shares,
        loads,
        interval,
    )


def _add_counts(evidence: Evidence, known: dict[str, Known]) -> None:
    whole = evidence.whole_answers()
    if whole:
        known["requests"] = Measured(len(whole), "whole answers of the server that speculates")
    repeated = [answer.repeated for answer in whole if answer.repeated is not None]
    if repeated:
        source = f"runs of {WINDOW} tokens that come twice in an answer"
        known["repeated_share"] = Measured(float(np.mean(repeated)), source)
    answers = [answer for answer in whole if answer.rounds]
    if not answers:
        return
    counted = evidence.counted
    lengths = [(answer.tokens - 1) / (answer.rounds or 1) for answer in answers]
    rounds = _rounds(answers)
    drafted = _total(answer.drafted for answer in answers)
    accepted = _total(answer.accepted for answer in answers)
    known["rounds"] = Measured(rounds, counted)
    known["tokens_per_round"] = Measured(_tokens(answers) / rounds, counted)
    known["tokens_per_round_by_request"] = Measured(float(np.mean(lengths)), counted)
    if drafted is not None:
        known["drafted"] = Measured(drafted, counted)
        known["drafted_per_round"] = Measured(drafted / rounds, counted)
    if accepted is not None:
        known["accepted"] = Measured(accepted, counted)
    if drafted and accepted is not None:
        known["acceptance_rate"] = Measured(accepted / drafted, counted)
    ended = [answer for answer in answers if answer.ended and answer.accepted is not None]
    committed = sum((answer.rounds or 0) + (answer.accepted or 0) for answer in ended)
    if committed and drafted:
        # The token that ends an answer is committed and may not be sent: it is none behind the end.
        behind = [(a.rounds or 0) + (a.accepted or 0) - a.tokens for a in ended]
        known["unsent_share"] = Measured(sum(max(0, n) for n in behind) / committed, counted)


def _add_times(evidence: Evidence, known: dict[str, Known], missing: dict[str, str]) -> None:
    server = evidence.speculating
    answers = evidence.chosen(server)
    counted = evidence.counted_answers()
    if answers:
        known["token_s"] = Measured(_seconds(answers) / _tokens(answers), evidence.clock)
    if counted:
        known["round_s"] = Measured(_seconds(counted) / _rounds(counted), evidence.clock)
    undrafted = _undrafted(evidence)
    if undrafted:
        source = (
            f"{evidence.clock}: {len(undrafted)} answers of {server} in which nothing was drafted"
        )
        known["undrafted_s"] = Measured(_seconds(undrafted) / _rounds(undrafted), source)
    plain = evidence.chosen(evidence.servers[0]) if len(evidence.servers) > 1 else []
    if plain:
        source = f"{evidence.clock}: {len(plain)} answers of {evidence.servers[0]}"
        known["plain_server_s"] = Measured(_seconds(plain) / _tokens(plain), source)
        known["plain_s"] = known["plain_server_s"]
    elif undrafted:
        source = (
            f"rounds without a draft at {server} itself; a server without speculation may be faster"
        )
        known["plain_s"] = Measured(_value(known["undrafted_s"]), source)
    else:
        missing["plain_s"] = (
            "no second server was given, and no answer of this one, also of 2 tokens, is known to be without a draft"
        )
    if len(evidence.servers) > 1:
        ratio = _ratio(undrafted, [*evidence.chosen(evidence.servers[0], "length"), *plain])
        low, high = _interval_of(ratio) or (1.0, 1.0)
        if ratio is not None and not low <= 1 <= high:
            known["undrafted_ratio"] = Measured(ratio.value, OVER_PROMPTS)
    if known.get("plain_s") is None:
        return
    plain_s = _value(known["plain_s"])
    if answers:
        source = "times of a token with speculation and without"
        known["speedup"] = Measured(plain_s / _value(known["token_s"]), source)
    if counted:
        source = "time of a round over that of a plain token"
        known["break_even"] = Measured(_value(known["round_s"]) / plain_s, source)


def _undrafted(evidence: Evidence) -> list[ObservedAnswer]:
    """Return the answers of the speculating server in which nothing was drafted."""
    answers = [*evidence.counted_answers("length"), *evidence.counted_answers()]
    return [answer for answer in answers if answer.drafted == 0]


def _add_prices(evidence: Evidence, known: dict[str, Known], missing: dict[str, str]) -> None:
    """Add what a drafted token costs, and what its verification alone does."""
    answers = [*evidence.counted_answers(), *evidence.counted_answers("length")]
    timed = [answer for answer in answers if answer.drafted is not None]
    line = _line_of_rounds(timed)
    if isinstance(line, str):
        missing["drafted_token_s"] = line
    else:
        known["drafted_token_s"] = Measured(
            line.slope, f"a line through the times of {len(timed)} answers by what they drafted"
        )
    plain = evidence.servers[0]
    probes = evidence.chosen(plain, "width")
    slope = _slope_of_widths(probes)
    if isinstance(slope, str):
        missing["verified_token_s"] = slope
        return
    at = plain if len(evidence.servers) > 1 else f"{plain}, whose drafter may read them too"
    known["verified_token_s"] = Measured(
        slope, f"{len(probes)} prompts with a few new tokens behind a cached beginning, at {at}"
    )
    if known.get("drafted_token_s") is not None:
        own = max(0.0, _value(known["drafted_token_s"]) - slope)
        known["draft_token_s"] = Measured(own, "the price of a drafted token less its verification")


def _line_of_rounds(answers: Sequence[ObservedAnswer]) -> _Line | str:
    """Return the line of the time of a round over its drafted tokens, or why there is none."""
    if len(answers) < FEWEST_PROBES:
        return f"fewer than {FEWEST_PROBES} answers count what they drafted"
    rounds = np.array([answer.rounds for answer in answers], dtype=float)
    drafted = np.array([answer.drafted for answer in answers], dtype=float)
    if np.sqrt(np.average((drafted / rounds - drafted.sum() / rounds.sum()) ** 2)) < LEAST_SPREAD:
        return "all rounds drafted about as many tokens, and the server lets no request change that"
    columns = np.column_stack([rounds, drafted]) / np.sqrt(rounds)[:, None]
    times = np.array([answer.decode_s for answer in answers]) / np.sqrt(rounds)
    line = _fit(columns, times)
    return "the times vary more than drafts change them" if line is None else line


def _fit(columns: Array, times: Array) -> _Line | None:
    """Return the line by least squares; None if its slope is not above 0 by more than its error."""
    solution, _, rank, _ = np.linalg.lstsq(columns, times)
    if rank < columns.shape[1]:
        return None
    left = times - columns @ solution
    variance = float(left @ left) / max(1, len(times) - columns.shape[1])
    error = float(np.sqrt(variance * np.linalg.inv(columns.T @ columns)[-1, -1]))
    slope = float(solution[-1])
    return _Line(slope, float(solution[0])) if slope > ERRORS * error else None


def _slope_of_widths(probes: Sequence[ObservedAnswer]) -> float | str:
    """Return what one more token adds to a forward, over each prompt by itself; or why that is not known."""
    timed = [
        (probe.request_id, probe.width, probe.ttft_s)
        for probe in probes
        if probe.width is not None and probe.ttft_s is not None
    ]
    if len(timed) < FEWEST_PROBES:
        return "the server does not say how many tokens of a prompt it took from its cache"
    ids = sorted({request_id for request_id, _, _ in timed})
    own = np.array([[float(request_id == name) for name in ids] for request_id, _, _ in timed])
    widths = np.array([width for _, width, _ in timed], dtype=float)
    if float(np.std(widths)) < LEAST_SPREAD:
        return "the server computed as many tokens of every prompt"
    line = _fit(np.column_stack([own, widths]), np.array([seconds for _, _, seconds in timed]))
    return (
        "the times of prompts vary more than a few tokens change them"
        if line is None
        else line.slope
    )


def _add_parts(evidence: Evidence, known: dict[str, Known]) -> None:
    """Add the parts of a round: timed ones, or what follows from the prices of its tokens."""
    if known.get("round_s") is None:
        return
    round_s = _value(known["round_s"])
    answers = evidence.counted_answers()
    timed = [answer for answer in answers if answer.drafting_s is not None]
    if timed and len(timed) == len(answers):
        rounds = _rounds(answers)
        drafting = sum(answer.drafting_s or 0.0 for answer in answers) / rounds
        verification = sum(answer.verification_s or 0.0 for answer in answers) / rounds
        source = "timed by itself in each round"
    elif all(known.get(name) for name in ("draft_token_s", "drafted_per_round", "plain_s")):
        length = _value(known["drafted_per_round"])
        plain_s = _value(known["plain_s"])
        verification = min(round_s, plain_s + length * _value(known["verified_token_s"]))
        drafting = min(round_s - verification, length * _value(known["draft_token_s"]))
        source = "a plain token, and the prices of a drafted and of a verified token"
    else:
        return
    known["verification_s"] = Measured(verification, source)
    known["drafting_s"] = Measured(drafting, source)
    known["other_s"] = Measured(max(0.0, round_s - verification - drafting), "the rest of a round")


def _add_positions(evidence: Evidence, known: dict[str, Known], shares: Sequence[float]) -> None:
    """Add what the acceptance by place in the draft tells."""
    source = f"{evidence.counted}, by place in the draft"
    counted = [answer for answer in evidence.whole_answers() if answer.rounds]
    first = _total(answer.accepted_first for answer in counted)
    if shares:
        known["first_acceptance"] = Measured(shares[0], source)
    elif first is not None and known.get("rounds") is not None and known.get("drafted"):
        known["first_acceptance"] = Measured(first / _value(known["rounds"]), evidence.counted)
    if len(shares) > 1 and sum(shares[:-1]) > 0:
        known["later_acceptance"] = Measured(sum(shares[1:]) / sum(shares[:-1]), source)
    needed = ("drafted_token_s", "drafted_per_round", "round_s", "plain_s", "tokens_per_round")
    if not shares or not all(known.get(name) for name in needed):
        return
    price = _value(known["drafted_token_s"])
    round_s = _value(known["round_s"])
    fixed = round_s - price * _value(known["drafted_per_round"])
    if fixed <= 0:
        return  # the line does not describe these rounds
    speeds = [1 / _value(known["plain_s"])]
    speeds += [
        length / (fixed + price * count)
        for count, length in enumerate(accumulate(shares, initial=1.0))
    ][1:]
    best = int(np.argmax(speeds))
    now = _value(known["tokens_per_round"]) / round_s
    how = "acceptance by place in the draft, and the price of a drafted token"
    known["best_length"] = Measured(best, how)
    known["best_length_gain"] = Measured(speeds[best] / now, how)


def _loads(evidence: Evidence) -> Iterable[LoadFigures]:
    """Yield both servers under each number of requests in flight."""
    names = evidence.servers
    for concurrency in sorted({answer.concurrency for answer in evidence.answers}):
        answers = evidence.chosen(names[-1], concurrency=concurrency)
        plain = evidence.chosen(names[0], concurrency=concurrency) if len(names) > 1 else []
        counted = evidence.counted_answers(concurrency=concurrency)
        if answers:
            yield LoadFigures(
                concurrency,
                _seconds(answers) / _tokens(answers),
                _seconds(plain) / _tokens(plain) if plain else None,
                _tokens(counted) / _rounds(counted) if counted else None,
            )


def _add_loads(evidence: Evidence, known: dict[str, Known], loads: Sequence[LoadFigures]) -> None:
    together = [load for load in loads[1:] if load.plain_token_s is not None]
    if together:
        most = together[-1]
        known["concurrency"] = Measured(most.concurrency, "requests that were sent together")
        known["speedup_together"] = Measured(
            (most.plain_token_s or 0.0) / most.token_s, "times per token of both servers"
        )
        interval = _interval_of(_speedup(evidence, most.concurrency))
        if interval is not None:
            known["speedup_together_at_most"] = Measured(interval[1], OVER_PROMPTS)


def _speedup(evidence: Evidence, concurrency: int = 0) -> Ratio | None:
    """Return how many times as fast a token is with speculation, over the prompts of both sides."""
    plain = (
        evidence.chosen(evidence.servers[0], concurrency=concurrency)
        if len(evidence.servers) > 1
        else _undrafted(evidence)
    )
    return _ratio(plain, evidence.chosen(evidence.speculating, concurrency=concurrency))


def _ratio(first: Sequence[ObservedAnswer], second: Sequence[ObservedAnswer]) -> Ratio | None:
    """Return the time of a token in the first answers over that in the second ones, by prompts that both have."""
    ids = sorted({a.request_id for a in first} & {a.request_id for a in second})
    if not ids:
        return None

    def sums(
        chosen: Sequence[ObservedAnswer], what: Callable[[ObservedAnswer], float]
    ) -> list[float]:
        return [sum(what(a) for a in chosen if a.request_id == name) for name in ids]

    return Ratio.of(
        [sums(first, lambda a: a.decode_s), sums(second, lambda a: a.tokens - 1)],
        [sums(first, lambda a: a.tokens - 1), sums(second, lambda a: a.decode_s)],
    )


def _interval_of(ratio: Ratio | None) -> Sequence[float] | None:
    """Return the interval over prompts; None if there are too few of them."""
    if ratio is None or ratio.units < FEWEST_UNITS:
        return None
    return ratio.interval() or [ratio.value, ratio.value]  # modelled times may agree exactly


def _seconds(answers: Sequence[ObservedAnswer]) -> float:
    return sum(answer.decode_s for answer in answers)


def _tokens(answers: Sequence[ObservedAnswer]) -> int:
    """Return the tokens after the first of each answer."""
    return sum(answer.tokens - 1 for answer in answers)


def _rounds(answers: Sequence[ObservedAnswer]) -> int:
    return sum(answer.rounds or 0 for answer in answers)


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum, None if one of the counts is."""
    values = list(counts)
    return None if None in values or not values else sum(value or 0 for value in values)


def _value(known: Known) -> float:
    assert known is not None
    return known.value


OVER_PROMPTS = "sums over prompts, and how these differ"
NO_PLAIN_SERVER = (
    "only one server was given: name one without speculation as well, as in plain=... spec=..."
)
NO_ANSWER = "no answer of two tokens or more was timed"
NO_ROUNDS = (
    "the server counts no rounds, and its stream does not tell how many tokens came together"
)
NO_COUNTS = "the server counts no drafts"
NO_PLACES = "the server does not count accepted tokens by their place in the draft"
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("requests", "token_s"), NO_ANSWER),
    **dict.fromkeys(
        ("rounds", "tokens_per_round", "tokens_per_round_by_request", "round_s"), NO_ROUNDS
    ),
    **dict.fromkeys(("drafted", "accepted", "drafted_per_round"), NO_COUNTS),
    "acceptance_rate": f"{NO_COUNTS}, or nothing was drafted",
    **dict.fromkeys(("first_acceptance", "later_acceptance"), NO_PLACES),
    "plain_s": NO_PLAIN_SERVER,
    "speedup": "the time of a plain token is not known",
    "break_even": "the time of a round, or that of a plain token, is not known",
    "undrafted_s": "every round had a draft",
    "plain_server_s": NO_PLAIN_SERVER,
    "undrafted_ratio": "it takes two servers, six prompts, and a difference above what prompts vary by",
    "speedup_at_most": "it takes the time of a plain token, and six prompts",
    "drafted_token_s": "draft lengths did not vary",
    "verified_token_s": "no forward over a few tokens was timed",
    "draft_token_s": "drafting and its verification cannot be told apart",
    **dict.fromkeys(
        ("verification_s", "drafting_s", "other_s"), "the parts of a round cannot be told apart"
    ),
    **dict.fromkeys(
        ("best_length", "best_length_gain"),
        "it takes acceptance by place, the price of a drafted token and the time of a plain one",
    ),
    "unsent_share": "no answer was ended by the model itself, or drafts are not counted",
    "repeated_share": "the answers have no text, or are too short",
    **dict.fromkeys(
        ("concurrency", "speedup_together", "speedup_together_at_most"),
        "both servers have to be asked with several requests together: give two and --concurrency",
    ),
}
"""Why a number is not known, unless more is known of the reason."""
