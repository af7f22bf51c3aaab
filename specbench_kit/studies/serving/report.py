"""The report of a simulation or a search for capacity, as a document: how it was set up, and what
came out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.vocabulary import Percentiles
from specbench_kit.reports.document import (
    Block,
    Blocks,
    BulletList,
    Cell,
    Column,
    Document,
    Figure,
    Folded,
    Heading,
    Note,
    Paragraph,
    Table,
    caution,
    code,
    facts,
    link,
    paragraphs,
    with_more_columns,
)
from specbench_kit.reports.sections import deployment
from specbench_kit.reports.sections.cautions import foreign_files, setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.wording import dataset_sentence
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share
from specbench_kit.runs.document import RunDescription
from specbench_kit.serving.figures import (
    AXES,
    GroupFigures,
    Interval,
    SearchedRow,
    SeedFigures,
    ServerShare,
    ServingPoint,
    SimulatedRow,
    varied,
)
from specbench_kit.studies.serving import tails, wording
from specbench_kit.studies.serving.summary import (
    NAMES,
    CapacitySummary,
    Latencies,
    PresetDescription,
    ServingDescription,
    ServingSummary,
    SimulationSummary,
    axis_cell,
    latency_groups,
)
from specbench_kit.studies.serving.wording import estimate, mean_of, p95_of

F = TypeVar("F")
"""The figures that a column takes its own from."""


@dataclass(frozen=True, slots=True)
class FigureColumn(Column, Generic[F]):
    """A column of one figure."""

    of: Callable[[F], Interval | None] = lambda _: None


Group = GroupFigures[Interval]

RESULTS: Sequence[FigureColumn[Group]] = (
    FigureColumn("violations (95%)", "share", lambda group: group.violation_rate),
    FigureColumn("starved", "share", lambda group: group.starved_rate),
    FigureColumn("tokens/s", "number", lambda group: group.throughput),
    FigureColumn("goodput (tokens/s)", "number", lambda group: group.goodput),
    FigureColumn("tokens/s of a response", "number", lambda group: mean_of(group.speed)),
    FigureColumn("TTFT", "seconds", lambda group: mean_of(group.ttft_s)),
    FigureColumn("TPOT", "seconds", lambda group: mean_of(group.tpot_s)),
    FigureColumn("acceptance length", "number", lambda group: group.acceptance_length),
)


def _latency_columns(
    title: str, of: Callable[[Latencies], Percentiles[Interval] | None]
) -> Sequence[FigureColumn[Latencies]]:
    """Return the columns of one latency: its mean and its percentiles."""

    def column(
        name: str, part: Callable[[Percentiles[Interval]], Interval]
    ) -> FigureColumn[Latencies]:
        def figure(group: Latencies) -> Interval | None:
            percentiles = of(group)
            return part(percentiles) if percentiles else None

        return FigureColumn(f"{title} {name}", "seconds", figure)

    return (
        column("mean", lambda percentiles: percentiles.mean),
        column("p50", lambda percentiles: percentiles.p50),
        column("p95", lambda percentiles: percentiles.p95),
        column("p99", lambda percentiles: percentiles.p99),
    )


LATENCIES: Sequence[FigureColumn[Latencies]] = (
    *_latency_columns("response", lambda group: group.response_s),
    *_latency_columns("TTFT", lambda group: group.ttft_s),
    *_latency_columns("ICL", lambda group: group.icl_s),
    *_latency_columns("ITL", lambda group: group.itl_s),
    *_latency_columns("TPOT", lambda group: group.tpot_s),
)
"""How long a response takes from end to end, until its first token, and between the tokens that its
user sees.
"""
FIRST_LATENCIES = ("response p50", "response p95", "TTFT p95", "ICL p95")
LESS_NEEDED = {column.title for column in LATENCIES} - {*FIRST_LATENCIES}
"""Latencies that a table shows when it is opened."""
ROUNDS: Sequence[FigureColumn[SeedFigures]] = (
    FigureColumn("missed deadlines", "share", lambda figures: figures.overall.deadline_miss_rate),
    FigureColumn("slow rounds", "share", lambda figures: figures.overall.slow_round_rate),
    FigureColumn("queue", "seconds", lambda figures: mean_of(figures.overall.queue_s)),
    FigureColumn("queue p95", "seconds", lambda figures: p95_of(figures.overall.queue_s)),
    FigureColumn("verify", "seconds", lambda figures: mean_of(figures.overall.verify_s)),
    FigureColumn("interference", "number", lambda figures: mean_of(figures.overall.interference)),
    FigureColumn(
        "missed because of queueing", "count", lambda figures: figures.violations.queue_dominant
    ),
    FigureColumn(
        "missed because of batch time", "count", lambda figures: figures.violations.compute_dominant
    ),
)
SERVER: Sequence[FigureColumn[SeedFigures]] = (
    FigureColumn("busy", "share", lambda figures: figures.server.utilisation),
    FigureColumn("batch size", "number", lambda figures: mean_of(figures.server.batch_size)),
    FigureColumn(
        "requests left waiting",
        "number",
        lambda figures: mean_of(figures.server.left_waiting),
    ),
    FigureColumn(
        "estimated / true time", "number", lambda figures: figures.server.estimate_over_true
    ),
    FigureColumn("scheduler returned no batch", "count", lambda figures: figures.server.refusals),
    FigureColumn(
        "idle while requests waited", "seconds", lambda figures: figures.server.idle_while_waiting_s
    ),
    FigureColumn("evictions", "count", lambda figures: figures.server.evictions),
    FigureColumn("peak KV tokens", "count", lambda figures: figures.server.peak_kv_tokens),
    FigureColumn(
        "warm-up that was counted", "seconds", lambda figures: figures.steady.warm_up_left_s
    ),
)
COST: Sequence[FigureColumn[SeedFigures]] = (
    FigureColumn("J / token", "number", lambda figures: figures.cost.joules_per_token),
    FigureColumn(
        "J / token of servers", "number", lambda figures: figures.cost.server_joules_per_token
    ),
    FigureColumn(
        "J / token of devices", "number", lambda figures: figures.cost.device_joules_per_token
    ),
    FigureColumn(
        "J / hour of a device", "number", lambda figures: figures.cost.joules_per_device_hour
    ),
    FigureColumn(
        "tokens per $, devices while they draft",
        "count",
        lambda figures: figures.cost.tokens_per_price,
    ),
    FigureColumn(
        "tokens per $, devices all the time",
        "count",
        lambda figures: figures.cost.tokens_per_rented_price,
    ),
)
SERVERS: Sequence[FigureColumn[ServerShare[Interval]]] = (
    FigureColumn("busy", "share", lambda server: server.utilisation),
    FigureColumn("of all rounds", "share", lambda server: server.rounds_share),
    FigureColumn("of all tokens", "share", lambda server: server.tokens_share),
    FigureColumn("batch size", "number", lambda server: server.batch_size),
    FigureColumn("away", "seconds", lambda server: server.away_s),
    FigureColumn("sessions moved away", "count", lambda server: server.moved),
    FigureColumn("sessions lost in outages", "count", lambda server: server.lost),
)
"""What each server of a pool does, and the time in which it was away."""
GUARDS = (
    "The smallest guard time, of those tried, with which a wrong estimator does as well as the correct one with its "
    "smallest guard time, as far as the seeds can tell."
)
EVENTS = "Timelines open in Perfetto (ui.perfetto.dev); events are Parquet tables of rounds, responses and batches."
AT_CAPACITY = ("response at capacity", "p50", "p95", "p99")
"""Titles of the columns of end-to-end latency at the capacity."""
PAGE_COLUMNS = 7
"""Columns of the first table, as many as a page holds."""
LONGEST_TABLE = 8
"""Rows from which on a table is folded."""


NAMED_IN_TITLE = 2


def serving_report(
    run: ServingDescription,
    summary: ServingSummary,
    figures: Sequence[Figure],
    links: Sequence[str],
) -> Document:
    """Return the report with its figures; `links` are further files of the folder."""
    preset = run.preset
    subject = "Capacity of" if isinstance(summary, CapacitySummary) else "Simulation of"
    # The labels of more systems would fill a phone's first screen; the first table has them.
    labels = [code(entry.label) for entry in run.series]
    names = " and ".join(labels) if len(labels) <= NAMED_IN_TITLE else f"{len(labels)} systems"
    guards = [wording.guard_sentence(guard) for guard in summary.guards]
    # One sentence comes first: the others follow the first table.
    sentence, *others = wording.headlines(run, summary) or [wording.NOTHING]
    return Document.of(
        f"{preset.name}: {preset.summary}" if preset else f"{subject} {names}",
        paragraphs(f"After {preset.source}. {preset.reading}".strip()) if preset else [],
        foreign_files(run),
        [Paragraph(f"**{sentence}**")],
        caution(
            [*setting_cautions(run), *wording.acceptance_cautions(run), *wording.cautions(summary)]
        ),
        [*figures[:1]],
        _capacity(summary) if isinstance(summary, CapacitySummary) else _simulation(summary),
        _tails(run, summary),
        [Heading("Other settings"), BulletList(others)] if others else [],
        _published(preset, summary) if preset else [],
        [Heading("Guard time against a wrong estimator"), BulletList(guards), Paragraph(GUARDS)]
        if guards
        else [],
        [Heading("More figures"), *figures[1:]] if len(figures) > 1 else [],
        [Heading("Events"), BulletList([link(path, path) for path in links]), Paragraph(EVENTS)]
        if links
        else [],
        setting(run),
        series(run),
        deployments(run),
        _definitions(run),
        provenance(run),
    )


def row_axes(rows: Sequence[ServingPoint]) -> list[str]:
    """Return the axes that a table shows: the number of devices, and all with several values."""
    changing = varied(rows)
    return [
        axis
        for axis in AXES
        if axis in changing or (axis == "devices" and rows[0].devices is not None)
    ]


def axis_titles(axes: Sequence[str]) -> list[str]:
    """Return the headings of the columns of some axes."""
    return [NAMES[axis] for axis in axes]


def point_cells(row: ServingPoint, axes: Sequence[str]) -> list[Cell]:
    """Return the cells that name a row: its series and its values of these axes."""
    return [code(row.series), *(axis_cell(axis, row.at(axis)) for axis in axes)]


def _tails(run: ServingDescription, summary: ServingSummary) -> Blocks:
    """Return the gaps between tokens with speculation and without it, at the same load."""
    table = tails.tail_table(run, summary)
    if table is None:
        return []
    searched = (
        " The loads are those that the search tried of both series with every seed."
        if isinstance(summary, CapacitySummary)
        else ""
    )
    return [
        Heading("Time between tokens, with speculation and without (modelled)"),
        *paragraphs(*tails.tail_sentences(run, summary)),
        Folded("Table", [table]) if len(table.rows) > LONGEST_TABLE else table,
        Note(
            "ITL: the tokens that a round brings share the gap before them equally; ICL counts that gap once, for all "
            f"of them.{searched}"
        ),
    ]


def _simulation(summary: SimulationSummary) -> Blocks:
    rows = summary.rows
    axes = row_axes(rows)
    by_class: list[list[Cell]] = []
    for row in rows:
        place = point_cells(row, axes)
        classes = row.figures.classes if len(row.figures.classes) > 1 else {}
        for name, group in classes.items():
            by_class.append([*place, name, group.promised_speed.mean, *_figures(group, RESULTS)])
    named = ("system", *axis_titles(axes))
    first = [*named, *(column.title for column in RESULTS)][:PAGE_COLUMNS]
    results = Table(
        (*named, *RESULTS),
        [[*point_cells(row, axes), *_figures(row.figures.overall, RESULTS)] for row in rows],
    )
    blocks: list[Block] = [Heading("Results (modelled)"), *with_more_columns(results, first)]
    folded = len(rows) > LONGEST_TABLE
    for title, table in (
        (
            "By class",
            Table((*named, "class", Column("SLO (tokens/s)", "number"), *RESULTS), by_class),
        ),
        ("Latency of responses", _latency_table(rows, axes)),
        ("Rounds", _figure_table(rows, ROUNDS)),
        ("Server", _figure_table(rows, SERVER)),
        ("Servers of the pool", _server_table(rows, axes)),
        ("Energy and cost", _figure_table(rows, COST)),
    ):
        table = table.without_empty_columns() if table.rows else table
        if len(table.titles) > len(named) and table.rows:
            first = [name for name in table.titles if name not in LESS_NEEDED][:PAGE_COLUMNS]
            opened = [Folded("Table", [table])] if folded else with_more_columns(table, first)
            blocks += [Heading(f"{title} (modelled)"), *opened]
    if pairs := summary.against_first:
        columns = (
            Column("throughput (95%)", "times"),
            Column("violation rate, difference (95%)", "share"),
        )
        differences = [
            [
                *point_cells(pair, axes),
                estimate(pair.throughput_ratio),
                estimate(pair.violation_difference),
            ]
            for pair in pairs
        ]
        heading = Heading(f"Against {code(pairs[0].against)}, seed by seed")
        blocks += [heading, Table((*named, *columns), differences)]
    return blocks


def _latency_table(rows: Sequence[SimulatedRow | SearchedRow], axes: Sequence[str]) -> Table:
    cells: list[list[Cell]] = []
    for row in rows:
        for name, group in latency_groups(row).items():
            cells.append([*point_cells(row, axes), name, *_figures(group, LATENCIES)])
    return Table(("system", *axis_titles(axes), "class", *LATENCIES), cells)


def servers_of(row: SimulatedRow | SearchedRow) -> Mapping[str, ServerShare[Interval]]:
    """Return what each server does in a row of either command; nothing for a single one that never
    fails.
    """
    return row.pool if isinstance(row, SearchedRow) else row.figures.pool


def _server_table(rows: Sequence[SimulatedRow | SearchedRow], axes: Sequence[str]) -> Table:
    cells: list[list[Cell]] = []
    for row in rows:
        servers = servers_of(row).items()
        cells += [
            [*point_cells(row, axes), name, *_figures(server, SERVERS)] for name, server in servers
        ]
    return Table(("system", *axis_titles(axes), "server", *SERVERS), cells)


def _figure_table(
    rows: Sequence[SimulatedRow], columns: Sequence[FigureColumn[SeedFigures]]
) -> Table:
    axes = row_axes(rows)
    cells = [[*point_cells(row, axes), *_figures(row.figures, columns)] for row in rows]
    return Table(("system", *axis_titles(axes), *columns), cells)


def _figures(figures: F, columns: Sequence[FigureColumn[F]]) -> list[Cell]:
    return [estimate(column.of(figures)) for column in columns]


def _capacity(summary: CapacitySummary) -> Blocks:
    rows = summary.rows
    axes = ["slo", *(axis for axis in row_axes(rows) if axis != "slo")]
    cells: list[list[Cell]] = []
    for row in rows:
        if row.refused:
            cells.append(
                [*point_cells(row, axes), "0", ABSENT, None, None, *(None for _ in AT_CAPACITY)]
            )
            continue
        by_seed = ", ".join(f"{seed.load:g}" for seed in row.seeds)
        tried = sum(len(seed.trials) for seed in row.seeds)
        latency = row.response_s
        parts = (
            (latency.mean, latency.p50, latency.p95, latency.p99)
            if latency
            else [None for _ in AT_CAPACITY]
        )
        found = (wording.capacity(row), by_seed, row.settled, tried)
        cells.append([*point_cells(row, axes), *found, *map(estimate, parts)])
    columns: list[Column | str] = ["capacity (95%)", "by seed"]
    columns += [Column("settled early or clearly", "share"), Column("loads tried", "count")]
    columns += [Column(title, "seconds") for title in AT_CAPACITY]
    text = (
        f"The highest load with a violation rate of at most {share(summary.rule.epsilon)}, found by doubling and "
        "halving, for each seed separately. A run stops at a quarter or half of its time if the interval of its rate "
        "then lies on one side of epsilon, which errs in 5% of runs at most over all looks together; otherwise the "
        "rate over the whole run decides."
    )
    table = Table(("system", *axis_titles(axes), *columns), cells)
    first = ["system", *axis_titles(axes), "capacity (95%)", *AT_CAPACITY][:PAGE_COLUMNS]
    blocks = [Heading("Capacity (modelled)"), *with_more_columns(table, first), Paragraph(text)]
    latencies = _latency_table(rows, axes)
    if latencies.rows:
        latencies = latencies.without_empty_columns()  # earlier versions have no ITL
        first = [name for name in latencies.titles if name not in LESS_NEEDED]
        blocks += [
            Heading("Latency of responses at the capacity (modelled)"),
            *with_more_columns(latencies, first),
        ]
    servers = _server_table(rows, axes)
    if servers.rows:
        first = servers.titles[:PAGE_COLUMNS]
        blocks += [
            Heading("Servers of the pool at the capacity (modelled)"),
            *with_more_columns(servers, first),
        ]
    return blocks


def _published(preset: PresetDescription, summary: ServingSummary) -> Blocks:
    """Return the paper's numbers next to the simulated ones, and the inputs that the paper leaves
    open.
    """
    inputs = [(assumed.name, assumed.value, assumed.effect) for assumed in preset.assumed]
    assumed: Blocks = [
        Heading("Assumed inputs"),
        Table(("input", "assumed", "effect of another value"), inputs),
    ]
    if not summary.published:
        return assumed
    columns = [
        *wording.PUBLISHED_COLUMNS,
        *(wording.ratio_columns(preset.against) if preset.against else []),
    ]
    rows = [wording.published_cells(pair)[: len(columns)] for pair in summary.published]
    text = (
        "The paper leaves inputs open, which are listed below, so that the numbers themselves need not agree; ratios "
        "between systems depend less on them. The ratio of ratios is 1 where the simulation shows the paper's "
        f"advantage, and above 1 where it shows a larger one. {code(wording.NOT_AT_HAND)}: the kit does not have the "
        "paper's number."
    )
    return [Heading("Published and simulated"), Table(columns, rows), Paragraph(text), *assumed]


def _definitions(run: ServingDescription) -> Blocks:
    speed = "its speed, from the request to its last token,"
    objective = speed if run.config.objective == "speed" else "its time per token after the first"
    text = (
        f"A response breaks its SLO when {objective} falls short of its class. Responses that are due before the end "
        "count once, finished or not; in the starved rate, a response that is overdue k times over counts k times. "
        "Goodput is the throughput times the share of tokens, of all responses that fell due, that came in responses "
        "which kept their SLO. A round misses its deadline when its verification ends after arrival + expected tokens "
        "/ promised speed - drafting - network. Interference is the time of a round's batch over the time that the "
        f"round would take alone. {wording.BUSY} Responses and TTFT are counted from the request. ICL, the "
        "inter-chunk latency, is the time between two arrivals of a response, of which the tokens of one round are "
        "one; vLLM's benchmark calls it inter-token latency, which AIPerf calls what is TPOT here. "
        "Energy is that of servers and of devices at the full power of their cards while they work. Intervals are 95% "
        "intervals of Student's t over seeds."
    )
    return [Heading("Reading the numbers"), Paragraph(text)]


NOTE = (
    "Only time is modelled, by the latency models above. Which tokens are accepted comes from the acceptance of each "
    "series, which may be that of other models than those whose latencies these are."
)


def setting(run: ServingDescription) -> Blocks:
    """Return the load, the SLOs and the limits of the simulated server."""
    config = run.config
    lengths = f"prompt {config.prompt_tokens or 'as recorded'}, output {config.output_tokens or 'as recorded'}"
    faster = f" at {config.arrivals_scale:g} times the rate" if config.arrivals_scale != 1 else ""
    uplink = config.shared_up_bytes_per_s
    promise = (
        "token speed end to end"
        if config.objective == "speed"
        else "time per token after the first"
    )
    rows = [
        ("arrivals", f"{config.arrivals}{faster}"),
        ("promised speed (SLO)", "; ".join(map(slo_in_words, config.slo))),
        ("SLO applies to", promise),
        ("tokens, unless the arrivals give them", lengths),
        ("links", f"as recorded in {code(config.link_trace)}" if config.link_trace else ""),
        ("shared uplink", f"{count(uplink)} bytes/s, first come, first served" if uplink else ""),
        ("time of a message at the server", seconds(config.frame_s) if config.frame_s else ""),
        ("servers that are away (number:from:to, in seconds)", ", ".join(config.outage)),
        ("largest batch", str(config.max_batch)),
        (
            "simulated",
            f"{config.duration_s:g} s, of which {config.warmup_s:g} s of warm-up do not count",
        ),
        ("seeds", f"{config.seeds}, from {config.seed} on; the same for every series"),
        ("dataset", dataset_sentence(run.dataset) if run.dataset.name else ""),
        ("profile of the estimator", config.estimator_profile or "the server's own"),
    ]
    return [Heading("What was simulated"), facts([row for row in rows if row[1]])]


def series(run: ServingDescription) -> Blocks:
    """Return system, scheduler, method, acceptance and KV memory of every series."""
    dataset = run.dataset.name or "a dataset"
    rows: list[list[Cell]] = []
    memory = []
    pools = any(entry.servers != "1" for entry in run.series)
    for entry in run.series:
        acceptance = f"the recorded trace of {dataset}, replayed with the method"
        typical = (entry.typical.submitted, entry.typical.acceptance, entry.typical.committed)
        rows.append(
            [
                code(entry.label),
                f"{entry.system}: {entry.summary}",
                code(entry.scheduler),
                code(entry.method),
                *([wording.servers(entry)] if pools else []),
                code(entry.acceptance) if entry.acceptance else acceptance,
                *typical,
            ]
        )
        kv = entry.kv
        tokens = f"{count(kv.tokens)} tokens, " if kv.tokens else ""
        context = f"; context of {count(kv.context)}" if kv.context else ""
        memory.append(f"{code(entry.label)}: {tokens}{kv.origin}{context}")
    columns: list[Column | str] = [
        "label",
        "system",
        "scheduler",
        "method",
        *(["servers"] if pools else []),
    ]
    columns += ["acceptance", Column("sent / round", "number"), Column("accepted", "share")]
    columns += [Column("tokens / round", "number")]
    return [
        Heading("Systems"),
        Table(columns, rows),
        Paragraph("Memory for KV:"),
        BulletList(memory),
    ]


def deployments(run: RunDescription) -> Blocks:
    """Return the latency models of every deployment."""
    blocks: list[Block] = []
    for name, described in run.deployments.items():
        blocks += [
            Heading(f"Deployment {code(name)} (modelled)"),
            facts(deployment.description(described)),
        ]
    return [*blocks, Paragraph(NOTE)]
