"""The report of a simulation or a search for capacity, as a document.

Also here: the sections on how a simulation was set up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.serving_rows import AXES, look_up, varied
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
    Paragraph,
    Row,
    RunFile,
    Summary,
    Table,
    caution,
    code,
    facts,
    link,
    paragraphs,
    with_more_columns,
)
from specbench_kit.reports.sections import deployment
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.wording import dataset_sentence
from specbench_kit.reports.serving import wording
from specbench_kit.reports.serving.charts import NAMES
from specbench_kit.reports.serving.wording import estimate
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share
from specbench_kit.runs.document import RunDescription


@dataclass(frozen=True, slots=True)
class ServingColumn(Column):
    """A column of one figure, given by its path in a row of the summary."""

    path: str = ""


RESULTS = (
    ServingColumn("violations (95%)", "share", "violation_rate"),
    ServingColumn("starved", "share", "starved_rate"),
    ServingColumn("tokens/s", "number", "throughput"),
    ServingColumn("goodput (tokens/s)", "number", "goodput"),
    ServingColumn("tokens/s of a response", "number", "speed.mean"),
    ServingColumn("TTFT", "seconds", "ttft_s.mean"),
    ServingColumn("TPOT", "seconds", "tpot_s.mean"),
    ServingColumn("acceptance length", "number", "acceptance_length"),
)
LATENCIES = tuple(
    ServingColumn(f"{title} {name}", "seconds", f"{metric}.{name}")
    for title, metric in (("response", "response_s"), ("TTFT", "ttft_s"), ("ITL", "itl_s"), ("TPOT", "tpot_s"))
    for name in ("mean", "p50", "p95", "p99")
)
"""How long a response takes from end to end, until its first token, and between the tokens that its user sees."""
FIRST_LATENCIES = ("response p50", "response p95", "TTFT p95", "ITL p95")
LESS_NEEDED = {column.title for column in LATENCIES} - {*FIRST_LATENCIES}
"""Latencies that a table shows when it is opened."""
ROUNDS = (
    ServingColumn("missed deadlines", "share", "overall.deadline_miss_rate"),
    ServingColumn("slow rounds", "share", "overall.slow_round_rate"),
    ServingColumn("queue", "seconds", "overall.queue_s.mean"),
    ServingColumn("queue p95", "seconds", "overall.queue_s.p95"),
    ServingColumn("verify", "seconds", "overall.verify_s.mean"),
    ServingColumn("interference", "number", "overall.interference.mean"),
    ServingColumn("missed because of queueing", "count", "violations.queue_dominant"),
    ServingColumn("missed because of batch time", "count", "violations.compute_dominant"),
)
SERVER = (
    ServingColumn("busy", "share", "server.utilisation"),
    ServingColumn("batch size", "number", "server.batch_size.mean"),
    ServingColumn("requests left waiting", "number", "server.left_waiting.mean"),
    ServingColumn("estimated / true time", "number", "server.estimate_over_true"),
    ServingColumn("scheduler returned no batch", "count", "server.refusals"),
    ServingColumn("idle while requests waited", "seconds", "server.idle_while_waiting_s"),
    ServingColumn("evictions", "count", "server.evictions"),
    ServingColumn("peak KV tokens", "count", "server.peak_kv_tokens"),
    ServingColumn("warm-up that was counted", "seconds", "steady.warm_up_left_s"),
    ServingColumn("J / token, at full power while busy", "number", "cost.joules_per_token"),
    ServingColumn("tokens per $, devices while they draft", "count", "cost.tokens_per_price"),
    ServingColumn("tokens per $, devices all the time", "count", "cost.tokens_per_rented_price"),
)
SERVERS = (
    ServingColumn("busy", "share", "utilisation"),
    ServingColumn("of all rounds", "share", "rounds_share"),
    ServingColumn("of all tokens", "share", "tokens_share"),
    ServingColumn("batch size", "number", "batch_size"),
    ServingColumn("away", "seconds", "away_s"),
    ServingColumn("sessions moved away", "count", "moved"),
    ServingColumn("sessions lost in outages", "count", "lost"),
)
"""What each server of a pool does, and the time in which it was away."""
GUARDS = (
    "The smallest guard time, of those tried, with which a wrong estimator does as well as the correct one with its "
    "smallest guard time, as far as the seeds can tell."
)
EVENTS = "Timelines open in Perfetto (ui.perfetto.dev); events are Parquet tables of rounds, responses and batches."
AT_CAPACITY = {"mean": "response at capacity", "p50": "p50", "p95": "p95", "p99": "p99"}
"""Titles of the columns of end-to-end latency at the capacity, by figure."""
PAGE_COLUMNS = 7
"""Columns of the first table, as many as a page holds."""
LONGEST_TABLE = 8
"""Rows from which on a table is folded."""


def serving_report(run: RunFile, summary: Summary, figures: Sequence[Figure], links: Sequence[str]) -> Document:
    """Return the report with its figures; `links` are further files of the folder."""
    described = RunDescription.read(run)
    preset = run["preset"]
    subject = "Capacity of" if run["command"] == "capacity" else "Simulation of"
    names = ", ".join(code(entry["label"]) for entry in run["series"])
    guards = [wording.guard_sentence(guard) for guard in summary["guards"]]
    # One sentence comes first: the others follow the first table.
    sentence, *others = wording.headlines(run, summary) or ["No series has a result."]
    return Document.of(
        f"{preset['name']}: {preset['summary']}" if preset else f"{subject} {names}",
        paragraphs(f"After {preset['source']}. {preset['reading']}".strip()) if preset else [],
        [Paragraph(f"**{sentence}**")],
        caution([*setting_cautions(described), *wording.acceptance_cautions(run), *wording.cautions(summary)]),
        [*figures[:1]],
        _capacity(summary) if run["command"] == "capacity" else _simulation(summary),
        [Heading("Other settings"), BulletList(others)] if others else [],
        _published(run, summary),
        [Heading("Guard time against a wrong estimator"), BulletList(guards), Paragraph(GUARDS)] if guards else [],
        [Heading("More figures"), *figures[1:]] if len(figures) > 1 else [],
        [Heading("Events"), BulletList([link(path, path) for path in links]), Paragraph(EVENTS)] if links else [],
        setting(run),
        series(run),
        deployments(described),
        _definitions(run),
        provenance(described),
    )


def row_axes(rows: Sequence[Row]) -> list[str]:
    """Return the axes that a table shows: the number of devices, and all with several values."""
    changing = varied(rows)
    return [axis for axis in AXES if axis in changing or (axis == "devices" and axis in rows[0])]


def axis_titles(axes: Sequence[str]) -> list[str]:
    """Return the headings of the columns of some axes."""
    return [NAMES[axis] for axis in axes]


def point_cells(row: Row, axes: Sequence[str]) -> list[Cell]:
    """Return the cells that name a row: its series and its values of these axes."""
    return [code(row["series"]), *(axis_cell(axis, row[axis]) for axis in axes)]


def axis_cell(axis: str, value: object) -> str:
    """Return a row's value of an axis."""
    if axis == "slo":
        return slo_in_words(str(value))
    return ABSENT if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _simulation(summary: Summary) -> Blocks:
    rows = summary["rows"]
    axes = row_axes(rows)
    by_class = [
        [*point_cells(row, axes), name, group["promised_speed"]["mean"], *_figures(group, RESULTS, "")]
        for row in rows
        for name, group in row["figures"]["classes"].items()
        if len(row["figures"]["classes"]) > 1
    ]
    class_table = Table(("system", *axis_titles(axes), "class", Column("SLO (tokens/s)", "number"), *RESULTS), by_class)
    first = [*("system", *axis_titles(axes)), *(column.title for column in RESULTS)][:PAGE_COLUMNS]
    results = with_more_columns(_figure_table(rows, RESULTS, "figures.overall."), first)
    blocks: list[Block] = [Heading("Results (modelled)"), *results]
    folded = len(rows) > LONGEST_TABLE
    for title, table in (
        ("By class", class_table),
        ("Latency of responses", _latency_table(rows, axes)),
        ("Rounds", _figure_table(rows, ROUNDS, "figures.")),
        ("Server", _figure_table(rows, SERVER, "figures.")),
        ("Servers of the pool", _pool_table(rows)),
    ):
        if table.rows:
            first = [name for name in table.titles if name not in LESS_NEEDED]
            opened = [Folded("Table", [table])] if folded else with_more_columns(table, first)
            blocks += [Heading(f"{title} (modelled)"), *opened]
    if pairs := summary["against_first"]:
        columns = (Column("throughput (95%)", "times"), Column("violation rate, difference (95%)", "share"))
        differences = [
            [*point_cells(pair, axes), *(estimate(pair[key]) for key in ("throughput_ratio", "violation_difference"))]
            for pair in pairs
        ]
        heading = Heading(f"Against {code(pairs[0]['against'])}, seed by seed")
        blocks += [heading, Table(("system", *axis_titles(axes), *columns), differences)]
    return blocks


def latency_groups(row: Row) -> list[tuple[str, Row]]:
    """Return the latencies of a row of either command: of all responses and, if there are several, of each class."""
    if "figures" not in row:
        return list((row.get("latencies") or {}).items())
    classes = row["figures"]["classes"]
    return [("all", row["figures"]["overall"]), *(classes.items() if len(classes) > 1 else ())]


def _latency_table(rows: Sequence[Row], axes: Sequence[str]) -> Table:
    cells = [
        [*point_cells(row, axes), name, *_figures(group, LATENCIES, "")]
        for row in rows
        for name, group in latency_groups(row)
    ]
    return Table(("system", *axis_titles(axes), "class", *LATENCIES), cells)


def _figure_table(rows: Sequence[Row], columns: Sequence[ServingColumn], prefix: str) -> Table:
    axes = row_axes(rows)
    cells = [[*point_cells(row, axes), *_figures(row, columns, prefix)] for row in rows]
    return Table(("system", *axis_titles(axes), *columns), cells)


def _figures(row: Row, columns: Sequence[ServingColumn], prefix: str) -> list[Cell]:
    return [estimate(look_up(row, prefix + column.path)) for column in columns]


def _pool_table(rows: Sequence[Row]) -> Table:
    """Return what each server of every pool does; no row without pools."""
    axes = row_axes(rows)
    cells = [
        [*point_cells(row, axes), name, *_figures(server, SERVERS, "")]
        for row in rows
        for name, server in row["figures"].get("pool", {}).items()
    ]
    return Table(("system", *axis_titles(axes), "server", *SERVERS), cells)


def _capacity(summary: Summary) -> Blocks:
    rows = summary["rows"]
    rule = summary["rule"]
    axes = ["slo", *(axis for axis in row_axes(rows) if axis != "slo")]
    cells: list[list[Cell]] = []
    for row in rows:
        if row.get("refused"):
            cells.append([*point_cells(row, axes), "0", ABSENT, None, None, *(None for _ in AT_CAPACITY)])
            continue
        by_seed = ", ".join(f"{seed['load']:g}" for seed in row["seeds"])
        tried = sum(len(seed["trials"]) for seed in row["seeds"])
        cells.append(
            [
                *(*point_cells(row, axes), wording.capacity(row), by_seed, row["settled"], tried),
                *(estimate(look_up(row, f"response_s.{figure}")) for figure in AT_CAPACITY),
            ]
        )
    columns: list[Column | str] = ["capacity (95%)", "by seed"]
    columns += [Column("settled early or clearly", "share"), Column("loads tried", "count")]
    columns += [Column(title, "seconds") for title in AT_CAPACITY.values()]
    text = (
        f"The highest load with a violation rate of at most {share(rule['epsilon'])}, found by doubling and halving, "
        "for each seed separately. A run stops at a quarter or half of its time if the interval of its rate then lies "
        "on one side of epsilon, which errs in 5% of runs at most over all looks together; otherwise the rate over the "
        "whole run decides."
    )
    table = Table(("system", *axis_titles(axes), *columns), cells)
    first = ["system", *axis_titles(axes), "capacity (95%)", *AT_CAPACITY.values()][:PAGE_COLUMNS]
    blocks = [Heading("Capacity (modelled)"), *with_more_columns(table, first), Paragraph(text)]
    latencies = _latency_table(rows, axes)
    if latencies.rows:
        first = [name for name in latencies.titles if name not in LESS_NEEDED]
        blocks += [Heading("Latency of responses at the capacity (modelled)"), *with_more_columns(latencies, first)]
    return blocks


def _published(run: RunFile, summary: Summary) -> Blocks:
    """Return the paper's numbers next to the simulated ones, and the inputs that the paper leaves open."""
    if not run["preset"]:
        return []
    inputs = [(entry["name"], entry["value"], entry["effect"]) for entry in run["preset"]["assumed"]]
    assumed: Blocks = [Heading("Assumed inputs"), Table(("input", "assumed", "effect of another value"), inputs)]
    against = run["preset"]["against"]
    pairs = summary.get("published")
    if not pairs:
        return assumed
    columns = [*wording.PUBLISHED_COLUMNS, *(wording.ratio_columns(against) if against else [])]
    rows = [wording.published_cells(pair)[: len(columns)] for pair in pairs]
    text = (
        "The paper leaves inputs open, which are listed below, so that the numbers themselves need not agree; ratios "
        "between systems depend less on them. The ratio of ratios is 1 where the simulation shows the paper's "
        f"advantage, and above 1 where it shows a larger one. {code(wording.NOT_AT_HAND)}: the kit does not have the "
        "paper's number."
    )
    return [Heading("Published and simulated"), Table(columns, rows), Paragraph(text), *assumed]


def _definitions(run: RunFile) -> Blocks:
    speed = "its speed, from the request to its last token,"
    objective = speed if run["config"]["objective"] == "speed" else "its time per token after the first"
    text = (
        f"A response breaks its SLO when {objective} falls short of its class. Responses that are due before the end "
        "count once, finished or not; in the starved rate, a response that is overdue k times over counts k times. "
        "Goodput counts the tokens of finished responses that keep their SLO. A round misses its deadline when its "
        "verification ends after arrival + expected tokens / promised speed - drafting - network. Interference is the "
        "time of a round's batch over the time that the round would take alone. Responses and TTFT are counted from "
        "the request. ITL is the time between two arrivals of a response, of which the tokens of one round are "
        "one, as vLLM's benchmark counts it; AIPerf calls it inter-chunk latency, and TPOT inter-token latency. "
        "Intervals are 95% intervals of Student's t over seeds."
    )
    return [Heading("Reading the numbers"), Paragraph(text)]


NOTE = (
    "Only time is modelled, by the latency models above. Which tokens are accepted comes from the acceptance of each "
    "series, which may be that of other models than those whose latencies these are."
)


def setting(run: RunFile) -> Blocks:
    """Return the load, the SLOs and the limits of the simulated server."""
    config = run["config"]
    lengths = [f"{name} {config[f'{name}_tokens'] or 'as recorded'}" for name in ("prompt", "output")]
    faster = f" at {config['arrivals_scale']:g} times the rate" if config["arrivals_scale"] != 1 else ""
    uplink = config["shared_up_bytes_per_s"]
    rows = [
        ("arrivals", f"{config['arrivals']}{faster}"),
        ("promised speed (SLO)", "; ".join(map(slo_in_words, config["slo"]))),
        (
            "SLO applies to",
            "token speed end to end" if config["objective"] == "speed" else "time per token after the first",
        ),
        ("tokens, unless the arrivals give them", ", ".join(lengths)),
        ("links", f"as recorded in {code(str(config['link_trace']))}" if config["link_trace"] else ""),
        ("shared uplink", f"{count(uplink)} bytes/s, first come, first served" if uplink else ""),
        ("time of a message at the server", seconds(config["frame_s"]) if config["frame_s"] else ""),
        ("servers that are away (number:from:to, in seconds)", ", ".join(config.get("outage", ()))),
        ("largest batch", str(config["max_batch"])),
        ("simulated", f"{config['duration_s']:g} s, of which {config['warmup_s']:g} s of warm-up do not count"),
        ("seeds", f"{config['seeds']}, from {config['seed']} on; the same for every series"),
        ("dataset", dataset_sentence(RunDescription.read(run).dataset) if run["dataset"] else ""),
        ("profile of the estimator", config["estimator_profile"] or "the server's own"),
    ]
    return [Heading("What was simulated"), facts([row for row in rows if row[1]])]


def series(run: RunFile) -> Blocks:
    """Return system, scheduler, method, acceptance and KV memory of every series."""
    dataset = (run["dataset"] or {}).get("name", "a dataset")
    rows = []
    memory = []
    pools = any(entry.get("servers", "1") != "1" for entry in run["series"])
    for entry in run["series"]:
        typical = entry["typical"]
        kv = entry["kv"]
        acceptance = entry["acceptance"] and code(entry["acceptance"])
        rows.append(
            (
                code(entry["label"]),
                f"{entry['system']}: {entry['summary']}",
                code(entry["scheduler"]),
                code(entry["method"]),
                *([wording.servers(entry)] if pools else []),
                acceptance or f"the recorded trace of {dataset}, replayed with the method",
                *(typical[key] for key in ("submitted", "acceptance", "committed")),
            )
        )
        tokens = f"{count(kv['tokens'])} tokens, " if kv["tokens"] else ""
        context = f"; context of {count(kv['context'])}" if kv["context"] else ""
        memory.append(f"{code(entry['label'])}: {tokens}{kv['origin']}{context}")
    columns: list[Column | str] = ["label", "system", "scheduler", "method", *(["servers"] if pools else [])]
    columns += ["acceptance", Column("sent / round", "number"), Column("accepted", "share")]
    columns += [Column("tokens / round", "number")]
    return [Heading("Systems"), Table(columns, rows), Paragraph("Memory for KV:"), BulletList(memory)]


def deployments(run: RunDescription) -> Blocks:
    """Return the latency models of every deployment."""
    blocks: list[Block] = []
    for name, described in run.deployments.items():
        blocks += [Heading(f"Deployment {code(name)} (modelled)"), facts(deployment.description(described))]
    return [*blocks, Paragraph(NOTE)]
