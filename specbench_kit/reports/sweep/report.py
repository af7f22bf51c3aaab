"""A sweep as a Markdown report: how each method's speedup changes, and where it is used up."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.render_markdown import blocks as markdown_of
from specbench_kit.reports.sweep import wording
from specbench_kit.reports.writing import colocation, deployment
from specbench_kit.reports.writing.cautions import setting_cautions
from specbench_kit.reports.writing.formatting import ABSENT, count, interval, rate, seconds, share, significant, times
from specbench_kit.reports.writing.markup import code, document, table, warning
from specbench_kit.reports.writing.provenance import provenance
from specbench_kit.reports.writing.wording import dataset_sentence, model_sentence, time_sentence, trace_sentence

Fields = Mapping[str, Any]


def render(run: Fields, summary: Fields) -> str:
    """The report of what `run.json` and `summary.json` hold; its plots lie beside it in `plots/`."""
    sections = [
        _title(run, summary),
        _fastest(summary),
        _break_even(summary),
        _edge(summary),
        _plots(summary),
        _rows(summary),
        _setting(run, summary),
        markdown_of(deployment.section(run)),
        _definitions(),
        markdown_of(provenance(run)),
    ]
    return document(sections)


def _title(run: Fields, summary: Fields) -> str:
    varied = ", ".join(code(key) for key, values in summary["axes"].items() if len(values) > 1)
    parts = [f"# Sweep over {varied} on {run['dataset'].get('name', 'a trace')}"]
    parts += [f"**{line}**" for line in wording.headlines(summary)]
    return "\n\n".join([*parts, warning(setting_cautions(dict(run)))])


def _fastest(summary: Fields) -> str:
    keys, found = list(summary["axes"]), summary["fastest"]
    rows = [
        (
            *(wording.number(one["place"][key]) for key in keys),
            code(one["method"]),
            times(one["speedup"]),
            code(one["next"]),
            times(one["lead"]),
        )
        for one in found
    ]
    header = [*map(code, keys), "highest speedup", "", "next", "lead over it"]
    return "## Which method where\n\n" + table(header, rows)


def _break_even(summary: Fields) -> str:
    rows = [row for found in summary["break_even"] for row in _crossings(found)]
    axis = next(iter(summary["axes"]))
    note = (
        f"A method's speedup is over {wording.RIVAL} of the same prompts on the same deployment, which crosses the "
        "link once per request. Between two points of the grid it is taken to go in a straight line."
    )
    header = ["method", "faster", f"break-even {code(axis)}", "between"]
    return "## Break-even\n\n" + table(header, rows) + f"\n\n{note}"


def _crossings(found: Fields) -> list[tuple[str, ...]]:
    method = code(found["method"])
    if not found["crossings"]:
        at = f"at {', '.join(map(str, found['faster_at']))}" if found["verdict"] == "in part" else found["verdict"]
        return [(method, at, ABSENT, ABSENT)]
    return [
        (method, "below" if one["stops"] else "above", significant(one["at"]), wording.bracket(one))
        for one in found["crossings"]
    ]


def _edge(summary: Fields) -> str:
    """Where the edge is worth it, and where the same method beside the target is."""
    if not summary["edge"]:
        return ""
    axis = next(iter(summary["axes"]))
    header = ["method", "edge faster than co-located", f"break-even {code(axis)}", "between"]
    crossings = table(header, [row for found in summary["edge"] for row in _crossings(found)])
    rows = [row for row in summary["rows"] if colocation.has_edge(row)]
    keys = list(summary["axes"])
    windows = table(
        [*map(code, keys), "method", "edge", "co-located", *(column.title for column in colocation.COLUMNS[3:])],
        [
            [
                *(wording.number(row[key]) for key in keys),
                code(row["method"]),
                times(row["speedup"]),
                times(row["colocated_speedup"]),
                *(seconds(row[name]) for name in colocation.WINDOWS),
                significant(row["capacity_factor"]),
            ]
            for row in rows
        ],
    )
    return f"## Edge or co-located\n\n{crossings}\n\n{windows}\n\n{colocation.NOTE}"


def _plots(summary: Fields) -> str:
    axis = next(iter(summary["axes"]))
    shown = [f"![{name} against {axis}](plots/{name}.png)" for name in ("speedup", "throughput")]
    if sum(len(values) > 1 for values in summary["axes"].values()) == 2:
        shown.append("![the fastest method](plots/fastest.png)")
    return "## Plots\n\n" + "\n".join(shown) + "\n\nThe same as SVG, and the table as `sweep.csv`, lie in this folder."


def _rows(summary: Fields) -> str:
    keys = list(summary["axes"])
    header = [*map(code, keys), "method", "speedup (95%)", "throughput", "acceptance length", "acceptance"]
    header += ["TTFT mean", "TPOT mean", "tokens per $"]
    priced = any(row["cost_efficiency"] is not None for row in summary["rows"])
    rows = [[*(wording.number(row[key]) for key in keys), *_cells(row)] for row in summary["rows"]]
    width = len(header) if priced else len(header) - 1
    return "## Results (modelled)\n\n" + table(header[:width], [row[:width] for row in rows])


def _cells(row: Fields) -> list[str]:
    bounds = row["speedup_low"], row["speedup_high"]
    within = f" ({interval(bounds)})" if None not in bounds else ""
    return [
        code(row["method"]),
        times(row["speedup"]) + within,
        rate(row["throughput"]),
        significant(row["acceptance_length"]),
        share(row["acceptance_rate"]),
        seconds(row["ttft_mean_s"]),
        seconds(row["tpot_mean_s"]),
        count(row["cost_efficiency"]),
    ]


def _setting(run: Fields, summary: Fields) -> str:
    rows = [
        ("dataset", dataset_sentence(run["dataset"])),
        *((f"{role} model", model_sentence(model)) for role, model in run["models"].items()),
        *([("trace", f"{trace_sentence(run['trace'])}, {count(run['requests'])} requests")] if "trace" in run else []),
        *((f"sweep over {code(key)}", ", ".join(map(wording.number, values))) for key, values in _axes(summary)),
        ("batch size", str(run["config"]["batch_size"])),
        ("time", time_sentence(dict(run))),
    ]
    return "## What was run\n\n" + table(["", ""], rows)


def _axes(summary: Fields) -> list[tuple[str, list[Any]]]:
    return list(summary["axes"].items())


def _definitions() -> str:
    return (
        "## Reading the numbers\n\n"
        "Speedup is autoregressive time / method time, end to end, as a ratio of sums over the same requests, with a "
        "95% interval over prompts. Every point replays the same trace, so that all differences between "
        "points come from the deployment or the options, and none from the prompts. The deployment shown above is that "
        "of the first point."
    )
