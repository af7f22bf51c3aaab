"""The sections of the report on one run; those on right answers also serve reports on several."""

from collections.abc import Mapping, Sequence

from msgspec.structs import astuple

from specbench_kit.datasets.tool_calls import KINDS
from specbench_kit.metrics import added
from specbench_kit.metrics.acceptance import DrafterRounds
from specbench_kit.metrics.along import PartAcceptance, Place
from specbench_kit.metrics.latency import PHASES, PROMISE, SCALES
from specbench_kit.metrics.losslessness import (
    CLEARLY_ABOVE,
    LosslessCounts,
    Losslessness,
    ScoringCost,
)
from specbench_kit.metrics.result import ExampleOutput, FailedRequest
from specbench_kit.metrics.run_summary import (
    AnswerCounts,
    BaselineSummary,
    PipelineMetrics,
    RunSummary,
)
from specbench_kit.metrics.thinking import PARTS, ThinkingSummary
from specbench_kit.metrics.tool_calls import ToolCallSummary
from specbench_kit.metrics.vocabulary import (
    BASELINE,
    DISTRIBUTIONS,
    LISTS,
    METRICS,
    OVERLAP,
    DistributionValues,
    MetricValues,
)
from specbench_kit.papers.quoted import SPECPIPE_GAINS
from specbench_kit.reports.document import (
    Block,
    Blocks,
    BulletList,
    Cell,
    CodeBlock,
    Column,
    Estimate,
    Figure,
    Folded,
    Heading,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    paragraphs,
    with_more_columns,
)
from specbench_kit.reports.sections import wording
from specbench_kit.reports.sections.columns import (
    added_columns,
    cells_of,
    leading_columns,
    value_with_interval,
)
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    interval,
    seconds,
    share,
    shorten_head,
    shorten_tail,
    significant,
    times,
)
from specbench_kit.runs.document import NumberFormat, RunDocument

EXPORTS: Mapping[str, Block] = {
    "plots/timeline.png": Figure(
        "Timeline of the first rounds of one request", "plots/timeline.png"
    ),
    "timeline.json": Paragraph(
        "Timeline: [`timeline.json`](timeline.json) opens in [Perfetto](https://ui.perfetto.dev) and in Chrome "
        "(`chrome://tracing`); the picture is also available as [SVG](plots/timeline.svg)."
    ),
    "tokens/index.html": Paragraph(
        "Tokens: [a page per request](tokens/index.html) shows the origin of each token."
    ),
}
"""What a report says of each file that its folder may hold."""
PROMPT_CHARACTERS = 300
OUTPUT_CHARACTERS = 600


def results(sides: Mapping[str, MetricValues]) -> Blocks:
    """Return the table of the method and its baseline, with seven columns before all others."""
    columns = [*leading_columns("run", "run, folded"), *added_columns(sides.values())]
    rows = [[_name(label), *cells_of(row, columns)] for label, row in sides.items()]
    first = ["method", *(column.title for column in leading_columns("run"))]
    return with_more_columns(Table(("method", *columns), rows), first)


def _name(label: str) -> str:
    return label if label == BASELINE else code(label)


def latency(run: RunDocument, sides: Mapping[str, MetricValues]) -> Blocks:
    """Return TTFT, TPOT and ITL of each side, and the SLO attainment if it is known."""
    rows = [
        (distribution.name.upper(), _name(label), *astuple(getattr(row, distribution.name)))
        for distribution in DISTRIBUTIONS
        for label, row in sides.items()
    ]
    columns: list[Column | str] = [
        "",
        "method",
        *(Column(name, "seconds") for name in DistributionValues.__struct_fields__),
    ]
    blocks: list[Block] = [Heading(f"Latency ({run.time_kind})"), Table(columns, rows)]
    if shares := next(iter(sides.values())).slo_attainment:
        text = ", ".join(
            f"{share(attained)} at {scale:g}x"
            for attained, scale in zip(shares, SCALES, strict=True)
        )
        slo = f"SLO attainment; the SLO is a factor times the {PROMISE}th percentile of TPOT in autoregressive decoding"
        blocks.append(Paragraph(f"{slo}: {text}."))
    return blocks


def categories(summary: RunSummary) -> Blocks:
    """Return the table of the dataset's categories."""
    columns = [
        *leading_columns("categories of a run"),
        *added_columns(summary.categories.values()),
    ]
    rows = [
        [name, part.finished, part.tokens, *cells_of(part, columns)]
        for name, part in summary.categories.items()
    ]
    header: list[Column | str] = [
        "category",
        Column("requests", "count"),
        Column("tokens", "count"),
        *columns,
    ]
    return [Heading("By category"), Table(header, rows)] if rows else []


def positions(overall: MetricValues) -> Blocks:
    """Return how often each draft position was accepted, up to the last that ever was."""
    rates = overall.acceptance_at
    conditional = overall.acceptance_at_conditional
    if not rates:
        return []
    blocks: list[Block] = [Heading("Acceptance by position")]
    reached = sum(1 for rate in rates if rate)
    if reached:
        titles = ("accepted, of all rounds", "accepted, given that all earlier positions were")
        columns: list[Column | str] = [
            "draft position",
            *(Column(title, "share") for title in titles),
        ]
        blocks.append(
            Table(columns, [(str(i + 1), rates[i], conditional[i]) for i in range(reached)])
        )
    if reached < len(rates):
        blocks.append(
            Paragraph(
                f"No round accepted more than {reached} of up to {len(rates)} draft positions."
            )
        )
    return blocks


PLACES: Mapping[Place, str] = {"output": "of the answer", "context": "of the context"}


def along(parts: Sequence[PartAcceptance]) -> Blocks:
    """Return how acceptance changes along the answer and with the context."""
    if not parts:
        return []
    columns: list[Column | str] = [
        "tokens before the round",
        Column("requests", "count"),
        Column("rounds", "count"),
        "acceptance length (95%)",
        Column("acceptance rate", "share"),
    ]
    blocks: list[Block] = [Heading("Acceptance along the text")]
    for place, words in PLACES.items():
        rows = [
            (
                f"{part.begins:,} {'and more' if part.ends is None else f'to {part.ends - 1:,}'} {words}",
                part.requests,
                part.rounds,
                f"{significant(part.acceptance_length)} ({interval(part.interval)})",
                part.acceptance_rate,
            )
            for part in parts
            if part.by == place
        ]
        if rows:
            blocks.append(Table(columns, rows))
    note = "Later parts hold fewer requests: those with long answers or long prompts, which may be of another kind."
    return [*blocks, Paragraph(note)]


def thinking(summary: ThinkingSummary | None) -> Blocks:
    """Return acceptance, lengths and times of thoughts and of replies."""
    if summary is None:
        return []
    rows = [
        (
            part.part,
            part.answers,
            part.tokens,
            part.seconds,
            part.rounds,
            Estimate(part.acceptance_length, part.interval),
            part.acceptance_rate,
        )
        for part in summary.parts
    ]
    columns: list[Column | str] = [
        "part",
        Column("answers", "count"),
        Column("tokens", "number"),
        Column("time", "seconds"),
        Column("rounds", "count"),
        Column("acceptance length (95%)", "number"),
        Column("acceptance rate", "share"),
    ]
    cut = f"; {summary.unfinished:,} end before it" if summary.unfinished else ""
    return [
        Heading("Thoughts and reply"),
        Paragraph(f"{summary.answers:,} answers begin with thoughts{cut}."),
        Table(columns, rows),
        Paragraph(
            "Mean tokens and times of a part. Thoughts end at </think>, the reply begins with its first character that "
            "is no white space, and a round belongs to the part in which its first token lies."
        ),
    ]


def thinking_compared(summaries: Mapping[str, RunSummary]) -> Blocks:
    """Return each method's acceptance length and time by part; nothing without thoughts."""
    known = {label: own.thinking for label, own in summaries.items() if own.thinking}
    if not known:
        return []
    rows = []
    for label, own in known.items():
        parts = {part.part: part for part in own.parts}
        lengths = [
            Estimate(parts[part].acceptance_length, parts[part].interval) if part in parts else None
            for part in PARTS
        ]
        times = [parts[part].seconds if part in parts else None for part in PARTS]
        rows.append([code(label), own.answers, own.unfinished, *lengths, *times])
    columns: tuple[Column | str, ...] = (
        "method",
        Column("answers", "count"),
        Column("cut before the reply", "count"),
        *(Column(f"acceptance length, {part} (95%)", "number") for part in PARTS),
        *(Column(f"time, {part}", "seconds") for part in PARTS),
    )
    return [
        Heading("Thoughts and reply"),
        Table(columns, rows),
        Paragraph("Of the answers that begin with thoughts; each method's own page has the rest."),
    ]


def tool_calls(summary: ToolCallSummary | None) -> Blocks:
    """Return the acceptance by kind of token and by turn in conversations with tools."""
    if summary is None:
        return []
    tokens = sum(part.tokens for part in summary.kinds)
    kinds = [
        (
            part.kind,
            part.tokens,
            part.tokens / tokens,
            part.drafted / part.tokens,
            Estimate(part.acceptance_rate, part.interval),
            part.accepted / part.tokens,
        )
        for part in summary.kinds
    ]
    turns = [
        (
            f"turn {part.turn}",
            part.requests,
            part.prompt_tokens,
            part.output_tokens,
            Estimate(part.acceptance_length, part.interval),
            part.acceptance_rate,
        )
        for part in summary.turns
    ]
    return [
        Heading("Calls of tools"),
        Paragraph(
            f"{summary.calling:,} of {summary.answers:,} answers call a tool; the calls of {summary.valid:,} are "
            "valid: JSON to its end, a tool of the conversation, and arguments that its schema allows."
        ),
        Table(
            [
                "tokens of",
                Column("tokens", "count"),
                Column("share of the answers", "share"),
                Column("a draft was verified", "share"),
                Column("acceptance rate (95%)", "share"),
                Column("from drafts", "share"),
            ],
            kinds,
        ),
        Paragraph(
            "Structure is the marks, keys and names of calls; a copied argument stands in the context as a whole, any "
            "other does not; free text belongs to no call. A parser of each answer tells them, and a token is what "
            "most of its characters are."
        ),
        Table(
            [
                "answers at",
                Column("requests", "count"),
                Column("prompt tokens", "number"),
                Column("output tokens", "number"),
                Column("acceptance length (95%)", "number"),
                Column("acceptance rate", "share"),
            ],
            turns,
        ),
    ]


def tool_calls_compared(summaries: Mapping[str, RunSummary]) -> Blocks:
    """Return each method's acceptance rate by kind of token; nothing without conversations with
    tools.
    """
    known = {label: own.tool_calls for label, own in summaries.items() if own.tool_calls}
    if not known:
        return []
    kinds = [
        kind
        for kind in KINDS
        if any(part.kind == kind for own in known.values() for part in own.kinds)
    ]
    rows = []
    for label, own in known.items():
        rates = {part.kind: Estimate(part.acceptance_rate, part.interval) for part in own.kinds}
        rows.append([code(label), own.calling, own.valid, *(rates.get(kind) for kind in kinds)])
    columns: tuple[Column | str, ...] = (
        "method",
        Column("answers that call", "count"),
        Column("with valid calls", "count"),
        *(Column(kind, "share") for kind in kinds),
    )
    return [
        Heading("Calls of tools"),
        Table(columns, rows),
        Paragraph(
            "Acceptance rate by kind of token, of the tokens at whose place a drafted one was verified; each method's "
            "own page explains the kinds, and has the acceptance by turn."
        ),
    ]


def drafters(parts: Sequence[DrafterRounds]) -> Blocks:
    """Return the rounds of each drafter, if the method takes the drafts of a round from one of
    several.
    """
    rows = [
        (part.name, part.rounds, part.share, part.acceptance_rate, part.acceptance_length)
        for part in parts
    ]
    columns: list[Column | str] = [
        "drafter",
        Column("rounds", "count"),
        Column("share of rounds", "share"),
        Column("acceptance rate", "share"),
        Column("acceptance length", "number"),
    ]
    return [Heading("By drafter"), Table(columns, rows)] if rows else []


def phases(run: RunDocument, sides: Mapping[str, MetricValues]) -> Blocks:
    """Return the busy time of each phase."""
    rows = []
    for phase in PHASES:
        busy = [
            (getattr(row.phase_seconds, phase), getattr(row.phase_share, phase))
            for row in sides.values()
        ]
        if any(busy_s for busy_s, _ in busy):
            rows.append((phase, *(f"{seconds(busy_s)} ({share(part)})" for busy_s, part in busy)))
    table = Table(("phase", *map(_name, sides)), rows)
    return [Heading(f"Where the time goes ({run.time_kind})"), table] if rows else []


def overlap(run: RunDocument, summary: RunSummary) -> Blocks:
    """Return what drafting while the target verifies gains, for a method that does so."""
    if not summary.overlaps:
        return []
    overall = summary.overall
    rows = [
        (
            code(metric.name),
            value_with_interval(metric.name, metric.unit, overall),
            metric.definition,
        )
        for metric in METRICS
        if metric.name in OVERLAP and overall.value(metric.name) is not None
    ]
    tables = [Table(("", "", "meaning"), rows)] if rows else []
    return [
        Heading("Drafting while the target verifies"),
        *tables,
        *paragraphs(wording.overlap_note(run)),
    ]


def exports(exports: Sequence[str]) -> Blocks:
    """Return links to the files of the run directory that are listed."""
    blocks = [block for name, block in EXPORTS.items() if name in exports]
    return [Heading("Timeline and tokens"), *blocks] if blocks else []


def failures(requests: Sequence[FailedRequest]) -> Blocks:
    """Return the requests that ended in an error."""
    rows = [(request.request_id, request.error) for request in requests]
    return [Heading("Failed requests"), *capped_table(["request", "error"], rows)] if rows else []


def example(request: ExampleOutput | None) -> Blocks:
    """Return the prompt and the output of the first request that did not fail."""
    if request is None:
        return []
    blocks: list[Block] = [Heading(f"Example: request {code(request.request_id)}")]
    if request.prompt is not None:
        prompt = shorten_head("\n".join(request.prompt), PROMPT_CHARACTERS)
        blocks += [Paragraph("End of the prompt:"), CodeBlock(prompt)]
    blocks.append(Paragraph(f"Output ({request.tokens} tokens, ended by {request.finish_reason}):"))
    return [*blocks, CodeBlock(shorten_tail("\n".join(request.output), OUTPUT_CHARACTERS))]


def definitions() -> Folded:
    """Return the meaning of every metric, to open on a click."""
    meanings = (
        {metric.name: metric.definition for metric in METRICS}
        | {one.name: one.definition for one in DISTRIBUTIONS}
        | LISTS
        | dict(added.definitions())
    )
    return Folded(
        "Definitions", [BulletList([f"{code(name)}: {text}" for name, text in meanings.items()])]
    )


LOADED_AS_PUBLISHED = ("float32", "bfloat16", "float16")
"""Formats in which transformers computes with a model that was published in them."""
MOST_ROWS = 20
"""Rows of a list; the number of all others follows it."""


def lossless_section(run: RunDocument, summary: RunSummary) -> Blocks:
    """Return the verdict, with all outputs that diverge and what the judgement of them rests on."""
    sampling = summary.sampling
    lossless = sampling if sampling and sampling.rule == "match" else summary.lossless
    blocks: list[Block] = [
        Heading("Losslessness"),
        Paragraph(f"**{wording.lossless_sentence(run, summary)}**"),
    ]
    if lossless:
        blocks += _comparison(lossless)
    blocks += paragraphs(_published_format_sentence(run))
    if sampling and sampling.rule != "match":
        blocks.append(wording.sampling_tests(sampling))
    return blocks


def grammar(overall: MetricValues) -> Blocks:
    """Return how many outputs follow the grammar, and which share of drafts it forbids."""
    sentence = wording.validity_sentence(overall)
    if not sentence:
        return []
    drafts = f"Of the tokens that were sent to be verified, the grammar forbids {share(overall.forbidden_share)}."
    forced = (
        f"Of the output tokens, {share(overall.forced_share)} were not verified, since the grammar allows no others in "
        "their places; no acceptance counts them."
    )
    choices = (
        f"Of the drafted tokens that the grammar left a choice in, {share(overall.choice_acceptance_rate)} were "
        f"accepted; of all that were sent, {share(overall.acceptance_rate)}."
    )
    return [
        Heading("Valid by the grammar?"),
        *paragraphs(
            f"**{sentence}**",
            drafts if overall.forbidden_share is not None else "",
            forced if overall.forced_share else "",
            choices if overall.choice_acceptance_rate is not None else "",
        ),
    ]


def _comparison(lossless: LosslessCounts) -> Blocks:
    """Return the outputs that diverge, and what the judgement of them rests on."""
    blocks: list[Block] = []
    if lossless.prompt_differs:
        text = (
            "Not compared, because an earlier output of the same dialogue diverged, so that the prompt differs from "
            f"the baseline's: {lossless.prompt_differs}."
        )
        blocks.append(Paragraph(text))
    if lossless.not_compared:
        text = f"Requests that did not finish here or in the baseline, not compared: {lossless.not_compared}."
        blocks.append(Paragraph(text))
    if lossless.divergences:
        header = (
            "request",
            "verdict",
            "position",
            "method token",
            "baseline token",
            "margin",
            "noise",
            "control",
        )
        rows: list[list[Cell]] = [
            [
                divergence.request_id,
                divergence.verdict,
                divergence.position,
                *map(_token, (divergence.method_token, divergence.baseline_token)),
                *map(_short, (divergence.margin, divergence.noise, divergence.control)),
            ]
            for divergence in lossless.divergences
        ]
        blocks += capped_table(header, rows)
    blocks += paragraphs(*dict.fromkeys(_reason(entry) for entry in lossless.divergences))
    if lossless.scoring:
        blocks.append(Paragraph(_scoring_sentence(lossless.scoring)))
    if lossless.noise is not None and lossless.control is None:
        text = (
            "A divergence is a tie if the engine's log-probabilities of the two tokens differ by less than twice the "
            f"noise, and an error if by more than {2 * CLEARLY_ABOVE:g} times the noise. Noise: how far the distance "
            "between the two most probable tokens moves, where outputs agree, when a text is computed as a whole, "
            f"behind the engine's prefix cache, and beside others; at most {lossless.noise:.2g}."
        )
        blocks.append(Paragraph(text))
    elif lossless.noise is not None:
        text = (
            "A divergence is a tie if the scores of the two tokens differ by less than twice the noise, and each shape "
            "of forward gives the token that it gave in the run. Noise, between autoregressive decoding and the "
            f"verifications: at most {lossless.noise:.2g}. Control, between autoregressive decoding, the same in a "
            f"batch, and one forward over all tokens: {_short(lossless.control)}."
        )
        blocks.append(Paragraph(text))
    return blocks


def _token(token: int | None) -> str:
    return "(ended)" if token is None else str(token)


def _published_format_sentence(run: RunDocument) -> str:
    """Return how to compare outputs with transformers' own, if the target computed in another
    format than published.
    """
    formats = run.number_formats.get("target", NumberFormat())
    computed = formats.computed
    published = formats.published
    if published not in LOADED_AS_PUBLISHED or published == computed or run.config.temperature:
        return ""
    return (
        f"The target computed in {computed} and was published in {published}, in which transformers loads it by "
        "default: the output of its `generate` may then differ from autoregressive decoding here where two tokens are "
        f"nearly equal. To compare tokens, load it there with `dtype=torch.{computed}`, or run here with "
        f"`--dtype {published}`."
    )


def _reason(divergence: Losslessness) -> str:
    """Return why a difference could not be judged, or nothing."""
    return f"Not judged, because {divergence.reason}." if divergence.reason else ""


def _scoring_sentence(scoring: ScoringCost) -> str:
    """Return what the evidence of another process cost it."""
    if not scoring.forwards:
        return (
            f"The engine was asked for log-probabilities at {count(scoring.outputs)} divergences and at places "
            f"before them, which took {seconds(scoring.seconds)}."
        )
    return (
        f"The server scored {count(scoring.outputs)} outputs again for this, which took it "
        f"{seconds(scoring.seconds)} and {count(scoring.forwards)} forwards; rounds of devices went first."
    )


def _short(number: float | None) -> str:
    return ABSENT if number is None else f"{number:.2g}"


def capped_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[Block]:
    """Return a table of the first rows, followed by the number of all others."""
    more = len(rows) - MOST_ROWS
    return [Table(header, rows[:MOST_ROWS]), *paragraphs(f"and {more} more." if more > 0 else "")]


def pipeline_section(run: RunDocument, summary: RunSummary) -> Blocks:
    """Return the section, or nothing if the method fills no pipeline."""
    steps = summary.pipeline
    if not steps:
        return []
    stalls = (
        f"{count(steps.stalls)}: {count(steps.stalls_of_fills)} to fill the pipeline {count(steps.fills)} "
        f"times, {count(steps.stalls - steps.stalls_of_fills)} behind a gap in the tree"
    )
    rows = [
        ("stages", count(steps.stages)),
        ("time between tokens (TBT), mean", seconds(steps.tbt.mean)),
        ("time between tokens (TBT), p50", seconds(steps.tbt.p50)),
        ("time between tokens (TBT), p95", seconds(steps.tbt.p95)),
        *_gain(steps, summary.baseline),
        ("hit rate: tree levels that held the true token", share(steps.hit_rate)),
        ("steps per token, counted", significant(steps.steps_per_token)),
        ("1 + (1 - hit rate) x (stages - 1)", significant(steps.expected_steps_per_token)),
        (
            "SpecPipe's Eq. 2: 1 + (1 - hit rate) x stages",
            significant(steps.published_steps_per_token),
        ),
        ("steps", count(steps.steps)),
        ("steps without a token", stalls),
        *(
            (f"{phase}, per step", seconds(busy_s))
            for phase, busy_s in steps.step_s.items()
            if busy_s
        ),
    ]
    return [Heading("Pipeline"), Paragraph(_stages_sentence(run)), facts(rows)]


def _stages_sentence(run: RunDocument) -> str:
    if run.time_kind == "modelled":
        return "All stages work in parallel in the deployment's modelled time."
    if run.config.launch == "processes":
        return "Every stage was a process of its own."
    return "One process ran all stages, one after the other, so **the measured times are not those of a pipeline**."


def _gain(steps: PipelineMetrics, baseline: BaselineSummary | None) -> list[tuple[str, str]]:
    """Return how much longer a token of autoregressive decoding takes in this deployment, next to
    the paper's range.
    """
    own_s = steps.tbt.mean
    plain_s = baseline.overall.itl.mean if baseline else None
    if not own_s or not plain_s:
        return []
    low, high = SPECPIPE_GAINS["autoregressive"]
    name = f"TBT of autoregressive decoding over this; {low:g} to {high:g}x in SpecPipe's paper"
    return [(name, times(plain_s / own_s))]


ENOUGH_TOKENS = 320
"""The least limit to offer: answers to GSM8K, the longest that are judged here, seldom take more
tokens.
"""


def answers_section(summaries: Mapping[str, RunSummary]) -> Blocks:
    """Return the exact match of the target, the draft model and each label's method, if answers are
    known.
    """
    matches = {
        label: summary.exact_match for label, summary in summaries.items() if summary.exact_match
    }
    if not matches:
        return []
    first = next(iter(matches.values()))
    sides = [
        (name, side)
        for name, side in (("target", first.target), ("draft model alone", first.draft))
        if side
    ]
    sides += [(code(label), match.method) for label, match in matches.items()]
    rows = [(name, _exact_match(side), side.correct, side.judged, side.cut) for name, side in sides]
    counts = (Column(title, "count") for title in ("right", "judged", "cut by the limit"))
    hint = "" if first.draft else " `--draft-answers` adds the draft model alone."
    note = f"Answers are extracted from texts by this rule: {first.rule}. Nothing in them is executed.{hint}"
    cuts = caution(answer_cautions(list(summaries.values())))
    return [
        Heading("Answers"),
        *cuts,
        Table(("", Column("exact match", "share"), *counts), rows),
        Paragraph(note),
    ]


def answers_line(summaries: Sequence[RunSummary]) -> str:
    """Return the exact match of the target, or of the first method without it, in one line; empty
    if unknown.
    """
    match = next((summary.exact_match for summary in summaries if summary.exact_match), None)
    if match is None:
        return ""
    side = match.target or match.method
    name = "the target" if match.target else summaries[0].method
    exact = _exact_match(side)
    if exact is None:
        return (
            f"exact match of {name}: not judged ({_cut_of(side)} were cut by the limit of tokens)"
        )
    return f"exact match of {name}: {share(exact)} ({count(side.correct)} of {count(side.judged)} answers right)"


def _cut_of(side: AnswerCounts) -> str:
    return f"{count(side.cut)} of {count(side.judged)} answers"


def answer_cautions(summaries: Sequence[RunSummary]) -> list[str]:
    """Return the caution that the token limit cut answers, with the option that lets them end; none
    if it cut none.
    """
    matches = [summary.exact_match for summary in summaries if summary.exact_match]
    sides = [
        side for match in matches for side in (match.target, match.method) if side and side.cut
    ]
    if not sides:
        return []
    worst = max(sides, key=lambda side: side.cut / side.judged)
    limit = matches[0].max_new_tokens
    return [
        f"CUT ANSWERS: {_cut_of(worst)} were cut at the limit of {limit} "
        "tokens, and a cut answer may lack its result: "
        f"--max-new-tokens {max(ENOUGH_TOKENS, 2 * limit)} lets more of them end."
    ]


def _exact_match(side: AnswerCounts) -> float | None:
    """Return the share of right answers; None if most answers were cut, since it would then measure
    the limit.
    """
    return None if not side.judged or 2 * side.cut > side.judged else side.correct / side.judged
