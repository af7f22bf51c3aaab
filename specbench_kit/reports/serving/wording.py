"""Sentences and cells that a simulation's report and terminal say in the same words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench_kit.metrics.serving_rows import AXES, look_up, varied
from specbench_kit.reports.experiments.wording import outcome
from specbench_kit.reports.serving.lines import place
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share, significant, times

Fields = Mapping[str, Any]
Format = Callable[[float | None], str]
NOT_AT_HAND = "not at hand"
MOST_EVICTIONS = 2.0
"""Of KV for each response that ends; a real server with preemption has less than one."""


def cell(found: Fields | None, form: Format = significant) -> str:
    """The mean over seeds with its interval, where there is one that is not a point."""
    if found is None or found["mean"] is None:
        return ABSENT
    mean, low, high = (form(found[name]) for name in ("mean", "low", "high"))
    return mean if found["low"] is None or low == high else f"{mean} ({low}–{high})"


def headlines(run: Fields, summary: Fields) -> list[str]:
    """What came out, one sentence a series."""
    return _capacities(summary) if run["command"] == "capacity" else _rates(summary)


def _capacities(summary: Fields) -> list[str]:
    series = dict.fromkeys(row["series"] for row in summary["rows"])
    return [f"{name}: {_devices([r for r in summary['rows'] if r['series'] == name])}." for name in series]


def _devices(rows: Sequence[Fields]) -> str:
    axes = [axis for axis in AXES[1:] if len({row[axis] for row in rows}) > 1] or ["slo"]
    return "; ".join(f"{capacity(row)} at {place(row, axes)}" for row in rows[:6])


def unit_of(summary: Fields) -> str:
    """In what capacities are told: devices, or arrivals where these come by themselves."""
    return next((str(row["unit"]) for row in summary["rows"] if "unit" in row), "devices")


def capacity(row: Fields) -> str:
    """The capacity in its unit."""
    return f"{cell(row['capacity'], count if row['unit'] == 'devices' else significant)} {row['unit']}"


def _rates(summary: Fields) -> list[str]:
    rows = summary["rows"]
    axes = varied(rows) or ["devices"]
    last = {row["series"]: row for row in rows}
    return [
        f"{name}: {cell(look_up(row, 'figures.overall.violation_rate'), share)} of responses break their SLO and "
        f"{cell(look_up(row, 'figures.overall.throughput'))} tokens/s are committed at {place(row, axes)}."
        for name, row in last.items()
    ]


def cautions(summary: Fields) -> list[str]:
    """What a reader must know before quoting a number, besides what every modelled run says."""
    lines = [f"REFUSED: {row['series']}, SLO {row['slo']}: {row['refused']}." for row in _with(summary, "refused")]
    bounded = [row for row in _with(summary, "bounded") if row["bounded"]]
    lines += [f"AT LEAST: {row['series']}, SLO {row['slo']}: even the highest load was served." for row in bounded]
    lines += [_bent(row) for row in _with(summary, "monotone") if not row["monotone"]]
    lines += [_drifted(row) for row in _with(summary, "capacity") if row.get("steady", 1) < 1]
    return lines + unsteady(summary) + livelocks(summary) + thrashing(summary)


def _bent(row: Fields) -> str:
    return (
        f"NOT MONOTONE: {row['series']}, SLO {row['slo']}: a load was served although a lower one was not; the "
        "capacity is the highest that was found to be served."
    )


def _drifted(row: Fields) -> str:
    return (
        f"NOT STEADY: {row['series']}, SLO {row['slo']}: {share(1 - row['steady'])} of the runs still drifted at twice "
        "their time and count as not served; simulate for longer."
    )


def unsteady(summary: Fields) -> list[str]:
    """Points whose throughput drifted."""
    drifting = [row for row in _with(summary, "figures") if not row["figures"]["steady"]["steady"]]
    if not drifting:
        return []
    names = ", ".join(dict.fromkeys(f"{row['series']} at {row['devices']} devices" for row in drifting[:4]))
    more = f" and {len(drifting) - 4} more" if len(drifting) > 4 else ""
    return [
        f"NOT STEADY: throughput of the two halves differs by more than 5% for {names}{more}; simulate for longer, or "
        "take it as an overloaded or unevenly loaded server."
    ]


def livelocks(summary: Fields) -> list[str]:
    """Points at which an idle server kept requests waiting for longer than it worked."""
    lines = []
    for row in _with(summary, "figures"):
        server = row["figures"]["server"]
        idle_s, busy = server["idle_while_waiting_s"]["mean"], server["utilisation"]["mean"]
        if idle_s > 60 and busy < 0.5:
            lines.append(
                f"LIVELOCK: {row['series']} at {row['devices']} devices left requests waiting at an idle server for "
                f"{seconds(idle_s)} and declined {count(server['refusals']['mean'])} times to start a batch."
            )
    return lines


def thrashing(summary: Fields) -> list[str]:
    """Points at which sessions were evicted more often than responses ended."""
    return [
        f"THRASHING: {row['series']} at {row['devices']} devices evicted KV {count(evicted)} times for each response "
        "that ended, and computed it again each time; give it more memory, or fewer devices."
        for row in _with(summary, "figures")
        if (evicted := look_up(row, "figures.server.evictions_per_response.mean") or 0.0) > MOST_EVICTIONS
    ]


def guard_sentence(found: Fields) -> str:
    """How much guard time makes up for one wrong estimator."""
    error = f"times {found['estimator_factor']:g}, noise {found['estimator_noise']:g}"
    which = f"{found['series']}, SLO {found['slo']}"
    if found["guard_s"] is None:
        return f"{which}, estimator {error}: no guard time that was tried makes up for it."
    return f"{which}, estimator {error}: a guard time of {found['guard_s']:g} s makes up for it."


def published_cells(pair: Fields) -> list[str]:
    """Published, simulated, their ratio, then both ratios to the reference series and theirs."""
    form = form_of(pair)
    ratios = pair["ratio_of_ratios"]
    return [
        pair["series"],
        place(pair["where"], list(pair["where"])) or ABSENT,
        metric_name(pair["metric"]),
        NOT_AT_HAND if pair["value"] is None else f"{pair['bound']} {form(pair['value'])}".strip(),
        cell(pair["simulated"], form),
        outcome(pair),
        *([times(ratios[key]) for key in ("published", "simulated", "ratio")] if ratios else [ABSENT] * 3),
    ]


def form_of(pair: Fields) -> Format:
    """How its figure is written."""
    name = pair["metric"].removesuffix(".mean")
    return share if name.endswith("_rate") else seconds if name.endswith("_s") else significant


PUBLISHED_COLUMNS = ("series", "at", "figure", "published", "simulated (95%)", "simulated / published")


def ratio_columns(against: str) -> list[str]:
    """Headers of the ratios between series."""
    return [f"published {against} / series", f"simulated {against} / series", "ratio of ratios"]


def metric_name(path: str) -> str:
    """A path such as figures.overall.violation_rate in words."""
    parts = [part.removesuffix("_s") for part in path.split(".") if part not in ("figures", "overall", "mean")]
    return " ".join(parts).replace("_", " ").replace("classes", "class")


def _with(summary: Fields, name: str) -> list[Fields]:
    return [row for row in summary["rows"] if name in row]
