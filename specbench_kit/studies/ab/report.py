"""The report of `skit ab` and its files: the result in one sentence and one picture, then the
tables.
"""

from collections.abc import Sequence
from math import ceil, floor, inf, log
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, field

from specbench_kit.core.plain_text import last_part
from specbench_kit.core.typed_json import Number
from specbench_kit.live.engines.answers import ServerDescription
from specbench_kit.metrics.gate import POWER, TOO_MANY
from specbench_kit.metrics.setting import sampling_sentence
from specbench_kit.metrics.statistics import LEVEL, units_for_a_verdict
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, NOT_LOSSLESS, SLOWER, TOO_FEW
from specbench_kit.reports.document import (
    Block,
    Blocks,
    Cell,
    Column,
    Document,
    Estimate,
    Figure,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import foreign_files, resumed, setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.writing.drawing import Picture, logarithmic
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    interval,
    seconds,
    share,
    significant,
    times,
)
from specbench_kit.reports.writing.palette import COLOURS, GREY
from specbench_kit.runs.document import Resumption, RunConfig, RunDescription, grammar_words
from specbench_kit.studies.ab.comparison import BY_TURN
from specbench_kit.studies.ab.summary import (
    FIGURES,
    AbSummary,
    Divergence,
    FigureComparison,
    LoadSummary,
    OutputCheck,
    ServerFigures,
)
from specbench_kit.studies.ab.tails import tail_sentences
from specbench_kit.studies.ab.validity import LESS_VALID

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
PERCENTILES = ("p50", "p95", "p99")
TITLES = {
    "throughput": "tokens/s",
    "ttft": LATENCIES["ttft"],
    "reply": "first of reply",
    **LATENCIES,
    "acceptance": "acceptance",
}
"""What figures are called where there is little room."""


class AbConfig(RunConfig):
    """The settings of a comparison of two servers, with the latencies that goodput asks for."""

    ttft_slo: Annotated[
        Number | None, Meta(description="TTFT in seconds that goodput asks for; null for none")
    ] = None
    tpot_slo: Annotated[
        Number | None,
        Meta(description="TPOT in seconds that goodput asks for; null for none"),
    ] = None

    send_constraint: Annotated[
        bool, Meta(description="whether the servers were asked to write by the constraint")
    ] = False

    @property
    def slo(self) -> str:
        """The latencies that goodput asks for, in words; empty if it asks for none."""
        targets = {"TTFT": self.ttft_slo, "TPOT": self.tpot_slo}
        return ", ".join(
            f"{title} up to {seconds(value)}"
            for title, value in targets.items()
            if value is not None
        )


class AbDescription(RunDescription, kw_only=True):
    """What `run.json` says of a comparison of two servers."""

    config: Annotated[AbConfig, Meta(description="options of the command")] = field(
        default_factory=AbConfig
    )
    servers: Annotated[
        list[ServerDescription], Meta(description="the two servers, in the order of their names")
    ] = field(default_factory=list)
    requests: Annotated[
        int | None,
        Meta(
            description="requests of one repeat at one load to one server; null if that is not known"
        ),
    ] = None
    order: Annotated[
        str | None,
        Meta(
            description="the order in which the servers got their requests, in words; null if that is not "
            "known"
        ),
    ] = None
    resumptions: Annotated[
        list[Resumption],
        Meta(description="how often the comparison was interrupted and resumed, and where"),
    ] = field(default_factory=list)


def terminal(run: AbDescription, summary: AbSummary) -> Blocks:
    """Return what the command prints."""
    return [
        *caution(machine.warnings(run), severe=True),
        *foreign_files(run),
        Paragraph(f"**{headline(summary)}**"),
        side_by_side(summary),
        *([Note(note)] if (note := pairing_note(summary)) else []),
        *paragraphs(*what_would_tell(summary), *tail_sentences(summary)),
        *caution(all_cautions(run, summary)),
    ]


def build(run: AbDescription, summary: AbSummary, figures: Sequence[Figure] = ()) -> Document:
    """Return the report."""
    first, second = summary.names
    sections: Sequence[Blocks] = [
        caution(machine.warnings(run), severe=True),
        foreign_files(run),
        [Paragraph(f"**{headline(summary)}**")],
        caution(all_cautions(run, summary)),
        figures,
        paragraphs(*what_would_tell(summary), *tail_sentences(summary)),
        [Heading("Which one is faster"), *verdicts(summary), Note(verdict_note(summary))],
        [Heading("Throughput, speculation and outputs"), _load_table(run, summary)],
        [Heading("Latency"), _latency_table(summary)],
        _thinking(summary),
        _outputs(summary),
        _validity(run, summary),
        _setting(run, summary),
        provenance(run),
    ]
    return Document.of(f"{code(second)} against {code(first)}", *sections)


def verdicts(summary: AbSummary) -> Blocks:
    """Return a table of ratios and verdicts per load, short enough to go down a phone's screen."""
    several = len(summary.loads) > 1
    blocks: list[Block] = []
    for load in summary.loads:
        blocks += [Heading(load.load.capitalize(), 3)] if several else []
        blocks.append(_verdict_table(load, summary.names))
    return blocks


def _verdict_table(load: LoadSummary, names: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [
        [
            FIGURES[entry.figure],
            entry.verdict,
            Estimate(entry.typical, entry.typical_interval),
            Estimate(entry.ratio, entry.interval),
            entry.units,
        ]
        for entry in load.comparisons
    ]
    # The verdict comes before the numbers, as a reader in a hurry needs it first.
    columns = (
        "metric",
        "verdict",
        Column(f"{names[1]} over {names[0]}, typical turn", "times"),
        Column("in all", "times"),
        Column("units", "count"),
    )
    return Table(columns, rows)


def side_by_side(summary: AbSummary) -> Table:
    """Return both servers' own figures beside their ratio in a typical turn, narrow enough for a
    terminal.
    """
    first, second = summary.names
    rows: list[list[Cell]] = []
    for load in summary.loads:
        compared = {entry.figure: entry for entry in load.comparisons}
        own = {name: _own_figures(load.servers[name]) for name in summary.names}
        shown = [
            figure
            for figure in FIGURES
            if figure in compared or any(own[name][figure] != ABSENT for name in own)
        ]
        for figure in shown:
            numbers = [own[name][figure] for name in summary.names]
            title = load.load if figure == shown[0] else ""
            of_median = " P50" if figure in LATENCIES or figure == "reply" else ""
            rows.append(
                [title, TITLES[figure] + of_median, *numbers, *_ratio_cells(compared.get(figure))]
            )
        if load.validity is not None:
            shares = [_valid_share(load.servers[name]) for name in summary.names]
            rows.append(["", "valid answers", *shares, None, load.validity.verdict])
    columns = ("load", "", Column(first, "number"), Column(second, "number"))
    return Table((*columns, Column("times\nas fast\n(95%)", "times"), "verdict"), rows)


def _own_figures(figures: ServerFigures) -> dict[str, str]:
    """Return one server's own numbers, the median of latencies, by the names of figures."""
    latencies = {name: seconds(getattr(figures, name).p50) for name in LATENCIES}
    length = figures.speculation.acceptance_length if figures.speculation else None
    return {
        "throughput": significant(figures.throughput),
        **latencies,
        "reply": ABSENT if figures.thinking is UNSET else seconds(figures.thinking.reply.p50),
        "acceptance": significant(length),
    }


def _valid_share(figures: ServerFigures) -> str:
    return share(figures.validity.valid_share) if figures.validity else ABSENT


def _ratio_cells(entry: FigureComparison | None) -> tuple[Cell, Cell]:
    if entry is None:
        return None, ""
    if entry.typical is None:
        return Estimate(entry.ratio, entry.interval), entry.verdict
    return Estimate(entry.typical, entry.typical_interval), entry.verdict


def what_would_tell(summary: AbSummary) -> list[str]:
    """Return, for each load without a verdict end to end, about how many prompts would give one."""
    lines = []
    enough = units_for_a_verdict(
        sum(one.typical is not None for load in summary.loads for one in load.comparisons) or 1
    )
    for load in summary.loads:
        entry = _headline_comparison(load)
        if entry is None or entry.typical is None or entry.verdict not in (NO_DIFFERENCE, TOO_FEW):
            continue
        first, second = map(code, summary.names)
        if entry.typical_interval is None:
            # Beside other figures and loads a verdict may take more turns than one alone.
            least = max(enough, entry.units + 1) * load.turn_requests
            lines.append(f"At {load.load} a verdict takes {count(least)} prompts or more.")
            continue
        seen = abs(log(entry.typical))
        low, high = entry.typical_interval
        # An interval of 95% is 1.96 standard errors to either side, and what it takes to find a
        # difference in most cases comes on top.
        found_in_most = 1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf((1 + LEVEL) / 2)
        reach = found_in_most * log(high / low) / 2
        turns = entry.units * (reach / seen) ** 2 if seen else inf
        prompts = turns * load.turn_requests
        apart = f"{second} and {first}, {share(abs(entry.typical - 1))} apart in a typical turn"
        if prompts >= TOO_MANY:
            lines.append(f"At {load.load} {apart}, are too close for any number of prompts.")
        else:
            lines.append(f"At {load.load} about {count(ceil(prompts))} prompts would tell {apart}.")
    return lines


def _rows(summary: AbSummary) -> list[tuple[LoadSummary, str, str, ServerFigures]]:
    """Return each load, its name where it is the first row of the load, and the figures of each
    server.
    """
    return [
        (load, load.load if name == summary.names[0] else "", name, load.servers[name])
        for load in summary.loads
        for name in summary.names
    ]


def _load_table(run: AbDescription, summary: AbSummary) -> Table:
    slo = run.config.slo
    columns = (
        "load",
        "server",
        Column("tokens", "count"),
        Column("throughput", "rate"),
        Column("goodput", "rate"),
        Column(f"met the SLO ({slo})" if slo else "met the SLO", "share"),
        Column("in flight", "number"),
        Column("tokens per burst", "number"),
        Column("acceptance length", "number"),
        Column("tokens sent per round", "number"),
        Column("acceptance rate", "share"),
        Column("failed", "count"),
    )
    rows: list[list[Cell]] = []
    for _, title, name, figures in _rows(summary):
        speculation = figures.speculation
        rows.append(
            [
                title,
                code(name),
                figures.tokens,
                figures.throughput,
                figures.goodput,
                figures.attainment,
                figures.in_flight,
                figures.tokens_per_burst,
                Estimate(speculation.acceptance_length, speculation.interval)
                if speculation
                else None,
                speculation.tokens_per_round if speculation else None,
                speculation.acceptance_rate if speculation else None,
                figures.failed,
            ]
        )
    return Table(columns, rows).without_empty_columns()


def _latency_table(summary: AbSummary) -> Table:
    titles = [Column(f"{title} (P50, P95, P99)") for title in LATENCIES.values()]
    rows: list[list[Cell]] = []
    for _, title, name, figures in _rows(summary):
        cells = []
        for latency in LATENCIES:
            values = getattr(figures, latency)
            cells.append(
                " / ".join(seconds(getattr(values, percentile)) for percentile in PERCENTILES)
            )
        rows.append([title, code(name), *cells])
    return Table(("load", "server", *titles), rows)


def _thinking(summary: AbSummary) -> Blocks:
    """Return lengths and times of thinking parts and of replies; nothing without thinking parts."""
    shown = [
        (title, name, figures.thinking)
        for _, title, name, figures in _rows(summary)
        if figures.thinking is not UNSET
    ]
    if not shown:
        return []
    unit = "characters" if any(own.unit == "characters" for _, _, own in shown) else "tokens"
    rows: list[list[Cell]] = [
        [
            title,
            code(name),
            own.answers,
            own.unfinished or None,
            own.thinking_length,
            own.reply_length,
            " / ".join(seconds(getattr(own.reply, percentile)) for percentile in PERCENTILES),
            own.thinking_s,
            own.reply_s,
            own.thinking_rate,
            own.reply_rate,
        ]
        for title, name, own in shown
    ]
    columns = (
        "load",
        "server",
        Column("answers that think", "count"),
        Column("without a reply", "count"),
        Column(f"thinking, {unit}", "number"),
        Column(f"reply, {unit}", "number"),
        Column("first token of the reply (P50, P95, P99)"),
        Column("thinking", "seconds"),
        Column("reply", "seconds"),
        Column(f"{unit}/s, thinking", "number"),
        Column(f"{unit}/s, reply", "number"),
    )
    counted = (
        "Lengths are in characters, since a server does not count its tokens."
        if unit == "characters"
        else "Tokens that arrive in one chunk with the end of the thoughts are divided by the length of their text, as "
        "are all of a server that states only their total."
    )
    return [
        Heading("Thinking and reply"),
        *paragraphs(*(thinking_sentence(load, summary.names) for load in summary.loads)),
        Table(columns, rows).without_empty_columns(),
        Note(
            "Of the answers with a thinking part: mean lengths and times. A reply begins with its first character that "
            f"is no white space, after the server's fields of thoughts or behind {code('</think>')} in its text; "
            f"the first token of the reply is timed from when the request was sent. {counted}"
        ),
    ]


def thinking_sentence(load: LoadSummary, names: Sequence[str]) -> str:
    """Return how long one waits for the reply under a load; empty without a thinking part."""
    waits = [
        f"{seconds(own.reply.p50)} at {code(name)}"
        for name in names
        if (own := load.servers[name].thinking) is not UNSET and own.reply.p50 is not None
    ]
    if not waits:
        return ""
    entry = next((entry for entry in load.comparisons if entry.figure == "reply"), None)
    compared = ""
    if entry is not None and entry.typical is not None:
        bounds = f" ({interval(entry.typical_interval)})" if entry.typical_interval else ""
        compared = (
            f"; in a typical turn {code(names[1])} is {times(entry.typical)}{bounds} as fast "
            f"(verdict: {entry.verdict})"
        )
    return (
        f"Until the first token of the reply, behind the thoughts, the median wait at {load.load} is "
        f"{' and '.join(waits)}{compared}."
    )


def _outputs(summary: AbSummary) -> list[Block]:
    rows = [(load.load, _gate_cell(load.outputs, summary.names)) for load in summary.loads]
    blocks: list[Block] = [Heading("Outputs"), Table(("load", "pairs of outputs"), rows)]
    divergences = [
        (load.load, entry) for load in summary.loads for entry in load.outputs.divergences
    ]
    if divergences:
        columns = ("load", "request", "first difference", "after", *summary.names)
        table = [
            (
                load,
                f"{code(entry.request_id)}, {_dialogue_turn(entry)}repeat {entry.repeat + 1}",
                f"{entry.unit} {count(entry.position + 1)}",
                _quoted(entry.before),
                _quoted(entry.first),
                _quoted(entry.second),
            )
            for load, entry in divergences
        ]
        blocks += [
            Paragraph("The first place at which two outputs of one prompt differ:"),
            Table(columns, table),
        ]
    return blocks


def _validity(run: AbDescription, summary: AbSummary) -> Blocks:
    """Return which answers are valid JSON, and valid by their schemas; nothing without schemas."""
    rows: list[list[Cell]] = []
    for _, title, name, figures in _rows(summary):
        if (own := figures.validity) is not None:
            rows.append(
                [
                    title,
                    code(name),
                    own.answers,
                    Estimate(own.json_share, own.json_interval),
                    Estimate(own.valid_share, own.valid_interval),
                    own.cut,
                    own.fenced,
                ]
            )
    if not rows:
        return []
    columns = (
        "load",
        "server",
        Column("answers", "count"),
        Column("valid JSON", "share"),
        Column("valid by the schema", "share"),
        Column("cut", "count"),
        Column("in a code block", "count"),
    )
    asked = (
        "The servers were asked to write by the schema."
        if run.config.send_constraint
        else "Requests stated no schema of the answer; --send-constraint states it."
    )
    sentences = [validity_sentence(load, summary.names) for load in summary.loads if load.validity]
    return [
        Heading("Are the answers valid JSON?"),
        *paragraphs(*sentences, asked),
        Table(columns, rows),
        Note(
            "An answer is valid if it is JSON as a whole and follows the schema of its prompt; what the longest length "
            "cut, and JSON within a code block of Markdown, is not. In a conversation with tools answers count that "
            "call a tool: each call has to name one of the tools, with arguments that its schema allows. Intervals of "
            "95% (Wilson) and the test, of random exchanges between the servers, are over prompts."
        ),
    ]


def validity_sentence(load: LoadSummary, names: Sequence[str]) -> str:
    """Return how often each server's answers are valid under a load, and whether that differs."""
    entry = load.validity
    assert entry is not None
    first, second = (
        f"{share(own.valid_share)} ({share(own.valid_interval[0])} to {share(own.valid_interval[1])})"
        for name in names
        if (own := load.servers[name].validity)
    )
    moved = (
        f"{count(entry.first_only)} of {count(entry.prompts)} prompts are answered validly more often by "
        f"{code(names[0])}, {count(entry.second_only)} by {code(names[1])}"
    )
    return (
        f"Valid by their JSON schema at {load.load}: {second} of the answers of {code(names[1])}, {first} of those of "
        f"{code(names[0])}: {entry.verdict} ({moved}; chance {entry.chance:.2g})."
    )


def _gate_cell(check: OutputCheck, names: Sequence[str]) -> str:
    """Return the verdict of the gate, and what it counted, in one cell that fits a phone."""
    sentence = gate_sentence(check, names)
    return sentence if sentence.startswith(check.gate) else f"{check.gate}: {sentence}"


def _dialogue_turn(entry: Divergence) -> str:
    return f"turn {entry.dialogue_turn + 1}, " if entry.dialogue_turn else ""


def _quoted(text: str) -> str:
    return code(text) if text else "the end"


def _dialogues(run: AbDescription) -> str:
    """Return how many requests the prompts make, where some are dialogues of several turns."""
    dialogues = run.requests and run.requests != run.dataset.count
    return f" dialogues of {count(run.requests)} turns, each a request" if dialogues else ""


def _setting(run: AbDescription, summary: AbSummary) -> Blocks:
    config = run.config
    repeats = config.repeats
    servers = [
        (
            code(server.name),
            ", ".join(
                filter(
                    None,
                    (server.dialect, server.address, last_part(server.model or ""), server.version),
                )
            ),
        )
        for server in run.servers
    ]
    turns = [
        f"{load.load}: {count(load.turns)} of {count(load.turn_requests)}" for load in summary.loads
    ]
    rows = [
        *servers,
        ("prompts", f"{run.dataset.name}, {count(run.dataset.count)}{_dialogues(run)}"),
        ("most output tokens", count(config.max_new_tokens)),
        ("sampling", sampling_sentence(config)),
        (
            "asked",
            f"{'once' if repeats == 1 else f'{count(repeats)} times'} at each server"
            if repeats
            else ABSENT,
        ),
        ("turns (of requests each)", "; ".join(turns)),
        ("order", run.order or ABSENT),
        *([("SLO", config.slo)] if config.slo else []),
        *([("JSON schema", grammar_words(config.constraint))] if config.constraint else []),
    ]
    return [Heading("What was run"), facts(rows)]


def where(run: AbDescription) -> str:
    """Return the prompts and the lengths in a few words."""
    return f"{run.dataset.count} prompts of {run.dataset.name}, up to {run.config.max_new_tokens} output tokens"


BLUE, _, GREEN, RED = COLOURS[:4]
ROW_IN = 0.26
NARROW = 4.0
"""The ratio of the ends of an axis up to which its marks are evenly spaced numbers."""
MOST_TICKS = 6
NOTE = (
    "Ratios above 1 mean that the second server is faster in a typical turn. Lines are intervals that hold jointly "
    "with 95% confidence: one that crosses 1 shows no difference."
)


def ratios(summary: AbSummary) -> Picture:
    """Return the picture of all ratios of a typical turn, with their intervals."""
    entries = [
        (load.load, entry, entry.typical)
        for load in summary.loads
        for entry in load.comparisons
        if entry.typical is not None
    ]
    first, second = summary.names
    from matplotlib.ticker import FixedLocator

    def draw(axes: "Axes") -> None:
        labels = []
        for row, (load, entry, ratio) in enumerate(entries):
            colour = {FASTER: GREEN, SLOWER: RED}.get(entry.verdict, GREY)
            low, high = entry.typical_interval or (ratio, ratio)
            axes.plot([low, high], [row, row], color=colour, linewidth=2)
            axes.plot([ratio], [row], "o", color=colour, markersize=5)
            # The line of equal servers may run behind the number.
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.annotate(
                times(ratio),
                (high, row),
                (6, 0),
                textcoords="offset points",
                va="center",
                bbox=paper,
            )
            labels.append(f"{TITLES[entry.figure]}, {load}")
        axes.axvline(1, color=BLUE, linewidth=1, linestyle="--")
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        ends = [
            end
            for _, entry, ratio in entries
            for end in (*(entry.typical_interval or ()), ratio, 1.0)
        ]
        logarithmic(axes, "x")
        if max(ends) < NARROW * min(ends):
            axes.xaxis.set_major_locator(FixedLocator(_marks(min(ends), max(ends))))
        axes.margins(x=0.2)
        axes.set_xlabel(f"{second} over {first}: times as fast in a typical turn")

    height_in = 0.8 + ROW_IN * max(2, len(entries))
    return Picture("ratios", f"{second} against {first}", NOTE, height_in, draw)


def _marks(low: float, high: float) -> list[float]:
    """Return evenly spaced numbers around 1 from below `low` to above `high`, few enough to be
    read.
    """
    step = next(
        step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / step < MOST_TICKS
    )
    first, last = floor((low - 1) / step), ceil((high - 1) / step)
    return [round(1 + place * step, 6) for place in range(first, last + 1) if 1 + place * step > 0]


HEADLINE_FIGURE = "e2e"
SAME_LENGTH = 0.02
"""Relative difference of the mean lengths of answers up to which times to the end compare the same
work.
"""
LATE_S = 0.02
"""Delay of a request behind its time of arrival from which the client is called too slow."""


def headline(summary: AbSummary) -> str:
    """Return the result in one sentence: how much faster in a typical turn, at which load, and if
    outputs agree.
    """
    first, second = map(code, summary.names)
    parts = [
        _at_load(load, comparison)
        for load in summary.loads
        if (comparison := _headline_comparison(load))
    ]
    if not parts:
        return f"No request was answered by both {first} and {second}: there is nothing to compare."
    result = f"End to end, {second} against {first} in a typical turn: {'; '.join(parts)}. {outputs_sentence(summary)}"
    # Ratios of times mean little where one server does less work, so this comes first.
    lengths = [_lengths_sentence(load, summary.names) for load in summary.loads if _differ(load)]
    valid = [validity_sentence(load, summary.names) for load in summary.loads if load.validity]
    return " ".join([*lengths, result, *valid, *_saturation_sentence(summary)])


def _saturation_sentence(summary: AbSummary) -> list[str]:
    """Return the lowest load at which each server is over-saturated, and what was not run for
    that.
    """
    parts = [
        f"{code(name)} at {next(iter(loads))}" for name, loads in summary.saturated.items() if loads
    ]
    if not parts:
        return []
    left_out = f"; not run for that: {', '.join(summary.left_out)}" if summary.left_out else ""
    return [f"Over-saturated: {', '.join(parts)}{left_out}."]


def _differ(load: LoadSummary) -> bool:
    return load.lengths is not None and abs(load.lengths.ratio - 1) > SAME_LENGTH


def _lengths_sentence(load: LoadSummary, names: Sequence[str]) -> str:
    """Return how the lengths of the answers differ under a load."""
    lengths = load.lengths
    assert lengths is not None
    first, second = (f"{tokens:.4g}" for tokens in lengths.mean_tokens)
    return (
        f"Answers of different lengths at {load.load}: {second} tokens on average from {code(names[1])}, {first} "
        f"from {code(names[0])} ({count(lengths.equal)} of {count(lengths.pairs)} pairs are equally long), so that "
        "times to the end compare different work."
    )


def _headline_comparison(load: LoadSummary) -> FigureComparison | None:
    return next(
        (entry for entry in load.comparisons if entry.figure == HEADLINE_FIGURE and entry.typical),
        None,
    )


def _at_load(load: LoadSummary, comparison: FigureComparison) -> str:
    bounds = f" ({interval(comparison.typical_interval)})" if comparison.typical_interval else ""
    value = f"{times(comparison.typical)}{bounds}"
    if comparison.verdict in (FASTER, SLOWER):
        return f"{value} as fast at {load.load}"
    if comparison.verdict in (NO_DIFFERENCE, TOO_FEW):
        return f"{comparison.verdict} at {load.load}, {value}"
    if comparison.verdict == BY_TURN:
        return f"{value} as fast at {load.load}, but {times(comparison.ratio)} over all turns"
    return f"{value} as fast at {load.load}, but {comparison.verdict.partition('but ')[2]}"


def outputs_sentence(summary: AbSummary) -> str:
    """Return what the correctness gate found, over all loads."""
    checks = [load.outputs for load in summary.loads]
    tests = [check.sampled for check in checks if check.sampled]
    if tests:
        shown = list(dict.fromkeys(name for test in tests for name in test.shown))
        if shown:
            return f"Sampled outputs have different distributions ({', '.join(shown)})."
        samples = count(sum(test.samples for test in tests))
        return f"The distributions of {samples} sampled outputs of each server show no difference."
    compared = sum(check.both.compared for check in checks)
    identical = sum(check.both.identical for check in checks)
    if not compared:
        return "Outputs were not compared."
    if identical == compared:
        return (
            f"All {count(compared)} pairs of outputs are identical."
            if compared > 1
            else "The one pair of outputs is identical."
        )
    outcome = f"{count(compared - identical)} of {count(compared)} pairs of outputs differ"
    if any(check.gate == "different" for check in checks):
        return f"{outcome}, more than a server differs from itself."
    return f"{outcome}, no more than a server differs from itself."


def gate_sentence(check: OutputCheck, names: Sequence[str]) -> str:
    """Return the result of the gate under one load, with how far each server agrees with itself."""
    if check.sampled:
        test = check.sampled
        shown = f"different: {', '.join(test.shown)}; " if test.shown else ""
        return (
            f"{count(test.samples)} samples of {count(test.prompts)} prompts at each server; {shown}chance of such "
            f"differences between equal servers {test.chance:.2g}, shown below {test.level:.2g}"
        )
    if check.gate == "not compared":
        return "not compared"
    floors = [
        f"{code(name)} with itself {agreement.identical} of {agreement.compared}"
        for name in names
        if (agreement := check.repeated.get(name)) and agreement.compared
    ]
    others = [
        f"{code(name)} with itself at other loads {agreement.identical} of {agreement.compared}"
        for name in names
        if (agreement := check.other_loads.get(name)) and agreement.compared
    ]
    return ", ".join(
        [f"identical {check.both.identical} of {check.both.compared}", *floors, *others]
    )


def all_cautions(run: AbDescription, summary: AbSummary) -> list[str]:
    """Return what limits the comparison, by its setting, its interruptions and its result."""
    return [*setting_cautions(run), *_resumed(run, summary), *cautions(summary)]


def _resumed(run: AbDescription, summary: AbSummary) -> list[str]:
    """Return when a comparison was interrupted and went on, and what became of the turn."""
    stops = run.resumptions
    if not stops:
        return []
    moments = " and ".join(
        f"at {stop.when or 'a time that is not known'} after {count(stop.done)}" for stop in stops
    )
    return resumed(
        run,
        stops,
        f"{moments} of {count(summary.planned)} requests: both servers took a turn that was cut short again, so that "
        "no time includes an interruption; they may have been started anew",
    )


def cautions(summary: AbSummary) -> list[str]:
    """Return what a reader must know before quoting a number."""
    lines = list(summary.cautions)
    if summary.partial:
        done = summary.finished + summary.failed
        lines.append(
            f"PARTIAL RUN: {count(done)} of {count(summary.planned)} requests are done; --resume goes on."
        )
    if summary.failed:
        lines.append(
            f"FAILED REQUESTS: {count(summary.failed)} of {count(summary.planned)}; pairs leave them out."
        )
        if any(_has_answers_beside_pairs(load) for load in summary.loads):
            lines[-1] += (
                " A server's own throughput and percentiles hold its answers to requests that failed at the other, "
                "which the ratios do not."
            )
    lines += _no_drafts(summary)
    lines += _estimated_itl(summary)
    for load in summary.loads:
        lines += _load_cautions(load)
    for name, loads in summary.saturated.items():
        lines += [
            f"OVER-SATURATED: {name} at {load}, where {reason}." for load, reason in loads.items()
        ]
    return list(dict.fromkeys(lines))


def _has_answers_beside_pairs(load: LoadSummary) -> bool:
    """Return True if a server answered requests that the other did not."""
    pairs = load.lengths.pairs if load.lengths else 0
    return any(figures.finished > pairs for figures in load.servers.values())


ONE_BY_ONE = 1.02
"""Tokens of a burst up to which a server sends its tokens one by one."""


def _no_drafts(summary: AbSummary) -> list[str]:
    """Return the loads at which neither server drafted anything, as far as they and their streams
    tell.
    """
    loads = [
        load.load
        for load in summary.loads
        if not any(
            figures.speculation and figures.speculation.drafted != 0
            for figures in load.servers.values()
        )
        and all(
            (figures.tokens_per_burst or 1.0) <= ONE_BY_ONE for figures in load.servers.values()
        )
    ]
    if not loads:
        return []
    return [
        f"NO DRAFTS at {', '.join(loads)}: neither server says that it drafted, and both send their tokens one by one. "
        "If one is to speculate, see whether speculation is on, and whether these prompts give its drafter anything."
    ]


def _estimated_itl(summary: AbSummary) -> list[str]:
    names = dict.fromkeys(
        name
        for load in summary.loads
        for name, figures in load.servers.items()
        if "usage at the end" in figures.counted_by
    )
    if not names:
        return []
    verb = "states" if len(names) == 1 else "state"
    return [
        f"ITL ESTIMATED: {' and '.join(names)} {verb} only the number of all tokens; those of a chunk are estimated "
        "from its text. TTFT, TPOT and end-to-end times do not depend on it."
    ]


def _load_cautions(load: LoadSummary) -> list[str]:
    lines = []
    if load.outputs.sampled and load.outputs.sampled.shown:
        lines.append(
            f"OUTPUTS DIFFER at {load.load}: {', '.join(load.outputs.sampled.shown)} have other distributions than "
            "chance explains; one of the servers does not sample from the model as the other does."
        )
    elif load.outputs.gate == "different":
        lines.append(
            f"OUTPUTS DIFFER at {load.load}: a faster server does other work, or rounds otherwise; see the divergences."
        )
    if any(entry.verdict == NOT_LOSSLESS for entry in load.comparisons):
        lines.append("A server whose outputs differ cannot win.")
    if load.validity is not None and load.validity.verdict == LESS_VALID:
        lines.append(
            f"FEWER VALID ANSWERS at {load.load}: {validity_sentence(load, list(load.servers))} What is faster and "
            "broken is no gain."
        )
    for name, figures in load.servers.items():
        if figures.validity and figures.validity.cut:
            lines.append(
                f"CUT ANSWERS: {count(figures.validity.cut)} of {count(figures.validity.answers)} answers of {name} at "
                f"{load.load} reached the longest length and are no JSON yet, so that they count as not valid: give a "
                "larger --max-new-tokens."
            )
        if "chunks" in figures.counted_by:
            lines.append(
                f"COUNTED BY CHUNKS: {name} does not say how many tokens it sent; a chunk may hold several. Give "
                "--tokenizer."
            )
        if figures.cached_tokens:
            lines.append(
                f"CACHED PROMPTS: {name} answered {count(figures.cached_tokens)} prompt tokens at {load.load} from its "
                "prefix cache, which shortens the time to the first token."
            )
        if figures.retried:
            reasons = "; ".join(
                f"{count(times)} as {reason}" for reason, times in figures.retry_reasons.items()
            )
            lines.append(
                f"Sent again: {count(figures.retried)} requests to {name} at {load.load}"
                + (f" ({reasons})." if reasons else ".")
            )
        if figures.speculation and figures.speculation.doubts:
            lines.append(
                f"IMPLAUSIBLE COUNTS of {name} at {load.load}: {'; '.join(figures.speculation.doubts)}. Do not quote "
                "its acceptance."
            )
        if figures.late_p99_s is not None and figures.late_p99_s > LATE_S:
            lines.append(
                f"LATE ARRIVALS at {load.load}: this client sent requests to {name} up to "
                f"{seconds(figures.late_p99_s)} late (P99); times count from when they were sent."
            )
    return lines


def pairing_note(summary: AbSummary) -> str:
    """Return what a ratio pairs, which need not be the ratio of the medians beside it; empty
    without a ratio.
    """
    if not any(entry.typical is not None for load in summary.loads for entry in load.comparisons):
        return ""
    return (
        "times as fast: of the same turns at both servers, in a typical turn; a P50 is the middle of each server's own "
        "turns, so that the ratio of two P50 may differ from it"
    )


def verdict_note(summary: AbSummary) -> str:
    """Return how to read the ratios."""
    compared = {entry.figure for load in summary.loads for entry in load.comparisons}
    figures = ", ".join(title for figure, title in FIGURES.items() if figure in compared)
    longer = ", or that its rounds commit more tokens" if "acceptance" in compared else ""
    return (
        f"A ratio above 1 means that {code(summary.names[1])} is faster{longer}. Verdicts on times go by a typical "
        "turn, so that a moment which held the machine up counts no more than any other; beside it stands the ratio of "
        f"the sums over all turns. Intervals are for {figures} at all loads together: with 95% confidence every one of "
        f"a column holds ({share(summary.level)} each of those in all). Units are turns: the requests that one server "
        "gets before the other gets the same ones."
    )
