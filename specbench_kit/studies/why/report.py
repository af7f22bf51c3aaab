"""The page of `skit why`: a sentence, a round beside plain tokens, the findings, and all numbers."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from msgspec import Meta, field

from specbench_kit.live.engines.answers import ServerDescription
from specbench_kit.reports.document import (
    Blocks,
    BulletList,
    Document,
    Figure,
    Folded,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    paragraphs,
)
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.formatting import (
    count,
    interval,
    seconds,
    share,
    significant,
    times,
)
from specbench_kit.reports.writing.palette import COLOURS, GREY
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.why.summary import (
    LoadFigures,
    Measured,
    Numbers,
    Severity,
    SpeedFinding,
    WhySummary,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES: dict[Severity, str] = {
    "fault": "Faults",
    "cost": "What it costs",
    "note": "To read it right",
}


class WhyDescription(RunDescription, kw_only=True):
    """What `run.json` says of a diagnosis."""

    servers: Annotated[
        list[ServerDescription],
        Meta(description="the servers, the one without speculation first if there are two"),
    ] = field(default_factory=list)
    sources: Annotated[
        list[str], Meta(description="names of the folders that were read in place of servers")
    ] = field(default_factory=list)


def headline(summary: WhySummary) -> str:
    """Return whether speculation pays, with the number, and the gravest finding."""
    numbers = summary.numbers
    first = next((f for f in summary.findings if f.severity == "fault"), None)
    because = f" {_first_sentence(first.sentence)}" if first else ""
    if summary.outcome == "cannot tell" and numbers.speedup is None:
        return f"Whether speculation pays cannot be told: {summary.reason}.{because}"
    assert numbers.speedup is not None
    ends = f" ({interval(summary.interval)})" if summary.interval else ""
    why = _comparison(numbers)
    factor = f"{times(numbers.speedup.value)}{ends}"
    if summary.outcome == "cannot tell":
        return f"Whether speculation pays cannot be told: {factor}; {summary.reason}.{because}"
    return f"Speculation {summary.outcome} here: {factor} as fast, as {why}.{because}"


def _comparison(numbers: Numbers) -> str:
    """Return what a round brings and costs or, where rounds are not known, the times of a token."""
    if numbers.tokens_per_round is None or numbers.break_even is None:
        token, plain = written("token_s", numbers.token_s), written("plain_s", numbers.plain_s)
        return f"a token takes {token} and {plain} without it"
    return (
        f"a round commits {significant(numbers.tokens_per_round.value)} tokens and takes as long as "
        f"{significant(numbers.break_even.value)} plain ones"
    )


def _first_sentence(text: str) -> str:
    return text.replace("**", "").partition(". ")[0].rstrip(".") + "."


def cautions(summary: WhySummary) -> list[str]:
    """Return what limits the numbers."""
    lines = list(summary.cautions)
    if len(summary.servers) == 1 and summary.numbers.plain_s is not None:
        lines.append(
            "ONE SERVER: plain tokens were timed at the server that speculates, in requests of two tokens, for which "
            "it drafts nothing. Where its drafter reads along, a server without speculation is faster, and speculation "
            "pays less than this says: give both, as in plain=... spec=..."
        )
    return lines


def setting(run: WhyDescription) -> str:
    """Return what was asked, in a few words."""
    if run.sources:
        return f"results of {', '.join(run.sources)}"
    return f"{run.dataset.count} prompts of {run.dataset.name}, up to {run.config.max_new_tokens} output tokens, greedy"


def build(run: WhyDescription, summary: WhySummary, figures: Sequence[Figure]) -> Document:
    """Return the page."""
    return Document.of(
        "Why speculation is slow or fast here",
        [Paragraph(f"**{headline(summary)}**"), *caution(cautions(summary)), *figures],
        _findings(summary),
        _loads(summary.loads),
        _numbers(summary),
        _positions(summary),
        _not_looked_at(summary),
        _servers(run),
        provenance(run),
    )


def terminal(summary: WhySummary) -> Blocks:
    """Return what the command prints."""
    return [
        Paragraph(f"**{headline(summary)}**"),
        *caution(cautions(summary)),
        *_findings(summary),
        *_left_out(summary),
    ]


def _findings(summary: WhySummary) -> Blocks:
    if not summary.findings:
        return paragraphs("No rule found anything to mend.")
    blocks: list[Any] = []
    for severity, title in TITLES.items():
        found = [finding for finding in summary.findings if finding.severity == severity]
        if found:
            blocks += [Heading(title), BulletList(list(map(_finding, found)))]
    return blocks


def _finding(finding: SpeedFinding) -> str:
    return f"{finding.sentence} **Try:** {finding.advice} (From {finding.source}; {code(finding.rule)}.)"


UNITS = {
    **dict.fromkeys(
        ("requests", "rounds", "drafted", "accepted", "best_length", "concurrency"), count
    ),
    **dict.fromkeys(
        (
            "acceptance_rate",
            "first_acceptance",
            "later_acceptance",
            "unsent_share",
            "repeated_share",
        ),
        share,
    ),
    **dict.fromkeys(
        (
            "speedup",
            "speedup_at_most",
            "speedup_together",
            "speedup_together_at_most",
            "undrafted_ratio",
            "best_length_gain",
        ),
        times,
    ),
}
"""How a number is written, by its name; names that end in _s are times, and all others plain numbers."""


def written(name: str, number: Measured | None) -> str:
    """Return a number of `Numbers` as pages show it."""
    value = number.value if number else None
    show = UNITS.get(name, seconds if name.endswith("_s") else significant)
    return show(value)


def descriptions() -> dict[str, str]:
    """Return what each number is, by its name."""
    return {
        name: next(str(meta.description) for meta in get_args(hint) if isinstance(meta, Meta))
        for name, hint in get_type_hints(Numbers, include_extras=True).items()
    }


def _numbers(summary: WhySummary) -> Blocks:
    rows = []
    unknown = []
    for name, words in descriptions().items():
        number: Measured | None = getattr(summary.numbers, name)
        if number is not None:
            rows.append((words, written(name, number), number.source))
        else:
            unknown.append((words, summary.missing.get(name, "")))
    return [
        Heading("The numbers"),
        Table(("number", "value", "from"), rows),
        *(
            [Folded("Numbers that are not known", [Table(("number", "why not"), unknown)])]
            if unknown
            else []
        ),
    ]


def _positions(summary: WhySummary) -> Blocks:
    shares = summary.accepted_at
    if not shares:
        return []
    rows = [
        (
            f"{place}",
            share(value),
            share(value / shares[place - 2] if place > 1 and shares[place - 2] else value),
        )
        for place, value in enumerate(shares, 1)
    ]
    return [
        Heading("Acceptance by place in the draft"),
        Table(("place", "of all rounds with a draft", "where all before were accepted"), rows),
    ]


def _loads(loads: Sequence[LoadFigures]) -> Blocks:
    if len(loads) < 2:
        return []
    rows = [
        (
            f"{load.concurrency}",
            seconds(load.token_s),
            seconds(load.plain_token_s),
            times(load.plain_token_s / load.token_s if load.plain_token_s else None),
            significant(load.tokens_per_round),
        )
        for load in loads
    ]
    columns = ("in flight", "per token", "per plain token", "speedup", "tokens per round")
    return [Heading("Several requests together"), Table(columns, rows)]


def _not_looked_at(summary: WhySummary) -> Blocks:
    if not summary.not_looked_at:
        return []
    reasons = dict.fromkeys(entry.because for entry in summary.not_looked_at)
    rows = [
        (
            "; ".join(e.looks_for for e in summary.not_looked_at if e.because == reason),
            reason,
        )
        for reason in reasons
    ]
    return [Heading("Not looked at"), Table(("what", "because"), rows)]


def _left_out(summary: WhySummary) -> Blocks:
    """Return the rules that the page gives a reason for, by their names."""
    names = ", ".join(entry.rule for entry in summary.not_looked_at)
    return [Note(f"Not looked at, for reasons on the page: {names}.")] if names else []


def _servers(run: WhyDescription) -> Blocks:
    if not run.servers:
        return []
    rows = [
        (server.name, code(server.dialect), server.model or "", server.version or "")
        for server in run.servers
    ]
    return [Heading("Servers"), Table(("name", "kind", "model", "version"), rows)]


BLUE, ORANGE, GREEN, RED = COLOURS[:4]
PARTS = (
    ("verification_s", "verification", BLUE),
    ("drafting_s", "drafting", ORANGE),
    ("other_s", "other", GREY),
)
ROUND, PLAIN = 1, 0


def pictures(summary: WhySummary) -> Iterator[Picture]:
    """Yield a round beside as many plain tokens as it brings, if both times are known."""
    numbers = summary.numbers
    if numbers.round_s is None or numbers.plain_s is None or numbers.tokens_per_round is None:
        return
    round_s, plain_s, length = (
        numbers.round_s.value,
        numbers.plain_s.value,
        numbers.tokens_per_round.value,
    )
    parts = [
        (label, value.value, colour)
        for name, label, colour in PARTS
        if (value := getattr(numbers, name)) is not None
    ] or [("drafting and verification", round_s, BLUE)]

    def paint(axes: "Axes") -> None:
        begin = 0.0
        for label, value, colour in parts:
            axes.barh(ROUND, 1e3 * value, left=1e3 * begin, color=colour, height=0.55, label=label)
            if len(parts) > 1 and value > 0.08 * max(round_s, length * plain_s):
                axes.text(
                    1e3 * (begin + value / 2),
                    ROUND,
                    share(value / round_s),
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=7,
                )
            begin += value
        left = length
        begin = 0.0
        while left > 1e-6:
            part = min(1.0, left) * plain_s
            axes.barh(
                PLAIN,
                1e3 * part,
                left=1e3 * begin,
                color=GREEN,
                height=0.55,
                edgecolor="white",
                label="a plain token" if not begin else None,
            )
            begin += part
            left -= 1
        axes.set_yticks(
            [ROUND, PLAIN],
            [f"one round: {significant(length)} tokens", f"{significant(length)} plain tokens"],
        )
        axes.set_xlabel("milliseconds")
        axes.set_ylim(-0.5, 2.0)
        axes.legend(
            fontsize=7,
            loc="upper left",
            frameon=False,
            ncols=4,
            handlelength=1.0,
            columnspacing=1.0,
        )

    shorter, gains = ("shorter", "gains") if round_s < length * plain_s else ("longer", "loses")
    yield Picture(
        "round",
        f"A round takes {seconds(round_s)}, its plain tokens {seconds(length * plain_s)}",
        f"The upper bar is {shorter} than the lower one: by as much speculation {gains}.",
        1.5,
        paint,
    )
