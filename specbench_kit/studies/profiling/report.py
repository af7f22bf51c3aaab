"""The report of a profiling run with plots: what a forward costs, and how far to trust the fitted
latency model.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta, field

from specbench_kit.profilers.base import DERIVED, Profile
from specbench_kit.profilers.fit import Accuracy, Fit, Observation
from specbench_kit.profilers.parts import WorkloadScale
from specbench_kit.profilers.saving import (
    TIMED_CONTEXT,
    DerivedTime,
    PolicyCosts,
    ProfileSummary,
    ProfilingSummary,
)
from specbench_kit.reports import render_terminal
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
    Table,
    caution,
    code,
    facts,
    paragraphs,
)
from specbench_kit.reports.sections import headlines, machine
from specbench_kit.reports.sections import profiles as wording
from specbench_kit.reports.sections.machine import provenance
from specbench_kit.reports.sections.wording import hardware_sentence, model_sentence
from specbench_kit.reports.writing.drawing import logarithmic, plot
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    seconds,
    share,
    significant,
    span,
)
from specbench_kit.reports.writing.palette import COLOURS, GREY, HATCHES, LINES, MARKERS
from specbench_kit.runs.document import RunConfig, RunDescription

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

RULE = "Lengths are multiplied by one factor: the largest of a fixed list that context, memory and time budget allow."
ESTIMATES = {
    "roofline": "A forward takes the larger of the times of its operations and its bytes, at the shares of peak and "
    "bandwidth that the software reaches, rounded where both are alike, plus what idles per step and per layer. The "
    "shares were fitted to measured kernels of other models and cards, not to this device running this model.",
    "silicon": "A forward takes the sum of its kernels' measured times, looked up by new tokens, rows of logits and "
    "context. Each time says whether its shape was measured (measured kernels), lies between measured ones "
    "(interpolated) or beyond them (analytic). Kernels were timed one by one; what an engine adds is the host's time.",
}
TIMES = f"Time of a forward after {TIMED_CONTEXT} cached tokens, with its range and origin:"
RANGE = (
    "The range is that of the source's spread, of a host that takes 0 to 3 ms per step unless it was given, and of "
    "interconnects with and without peer access."
)
NUMBERS = {
    "missed": ("missed", "the chance that a token leaves an expert out, no time"),
    "corner": ("q", "the exponent of the rounded corner, no time"),
    "uneven": (
        "uneven",
        "how far the card with the most experts to read is above the mean, no time",
    ),
    "window": (
        "window",
        "the tokens that layers with a window attend to, the last ones, no time",
    ),
    "narrow": ("narrow", "the most new tokens of a step that are computed one by one, no time"),
    "overlap": ("overlap", "the share of the shorter of host and card that is hidden, no time"),
}
"""Symbols and meanings of the coefficients that are no seconds."""
OF_SOME = frozenset(
    {
        "windowed_pair_s",
        "windowed_kv_s",
        "window",
        "state_s",
        "narrow",
        "narrow_token_s",
        "wider_s",
    }
)
"""Coefficients of layers and kernels that most models and engines have none of, for which they are
left out.
"""
DEFINITIONS = (
    "new: tokens that a forward computes, summed over its requests",
    "cached: tokens whose KV is already cached",
    "interactions: new x (cached + new) of each request",
    "context: tokens before each new token, summed over the new tokens",
    "MAPE: mean of |predicted - actual| / actual",
    "mean error: mean of predicted - actual",
    "compute-bound: prompts, nothing cached; memory-bound: a few new tokens after many cached; mixed: both",
)


REACHED_R2 = 0.95
REACHED_GAP = 0.05
"""R² on test configurations, and its loss from training to test, that WISP's profiles reach
(Appendix C).
"""


class ProfilingConfig(RunConfig):
    """The settings of a profiling run."""

    runs: Annotated[int, Meta(description="passes through the workload")] = 0


class ProfilingDescription(RunDescription, kw_only=True):
    """What `run.json` says of a profiling run."""

    config: Annotated[ProfilingConfig, Meta(description="the settings")] = field(
        default_factory=ProfilingConfig
    )
    workload: Annotated[dict[str, WorkloadScale], Meta(description="workload of each role")] = (
        field(default_factory=dict)
    )
    device_memory_bytes: Annotated[
        float | None,
        Meta(
            description="bytes of memory of the cards that a profile was derived for; null for a measured one"
        ),
    ] = None


def analytic_line(profile: ProfileSummary) -> str:
    """Return the line that no reader of an analytic profile may miss."""
    if profile.source == "silicon":
        return (
            f"FROM KERNELS, NOT MEASURED: this machine has no {profile.device}; this profile of {profile.model} "
            f"in {profile.dtype} is {profile.reference}. --require-measured forbids this."
        )
    return (
        f"ANALYTIC, NOT MEASURED: this machine has no {profile.device}; this profile of {profile.model} in "
        f"{profile.dtype} is a roofline {profile.reference}. --require-measured forbids this."
    )


def verdict_of(profile: ProfileSummary) -> str:
    """Return the verdict sentence of a profile in a summary."""
    verdict = profile.verdict
    low = {
        name: (profile.coefficients[name], profile.limits[name]) for name in verdict.coefficients
    }
    return wording.verdict_sentence(
        verdict.kind, low, verdict.regimes, verdict.reason, verdict.short
    )


def profile_cautions(run: ProfilingDescription, profile: ProfileSummary) -> list[str]:
    """Return what limits the use of a profile."""
    if profile.is_derived:
        return [analytic_line(profile), *_limit_cautions(run, profile)]
    return [
        *_fit_cautions(profile),
        *_measurement_cautions(run, profile),
        *_limit_cautions(run, profile),
    ]


def _fit_cautions(profile: ProfileSummary) -> list[str]:
    lines = []
    negative = {name: value for name, value in profile.estimates.items() if value < 0}
    if negative:
        named = " and ".join(
            f"{wording.SYMBOLS[name]} ({seconds(value)})" for name, value in negative.items()
        )
        lines.append(
            f"NEGATIVE: least squares make {named} negative; the profile is the best fit without negatives."
        )
    r2 = profile.test.r2
    gap = profile.generalisation_gap
    if r2 is None or r2 < REACHED_R2:
        lines.append(
            f"POOR FIT: R² on the test configurations is {wording.score(r2)}, below {REACHED_R2}."
        )
    if gap is not None and gap >= REACHED_GAP:
        lines.append(
            f"OVERFITTED: R² falls by {gap:.3f} from training to test; {REACHED_GAP} or more is too much."
        )
    return lines


def _measurement_cautions(run: ProfilingDescription, profile: ProfileSummary) -> list[str]:
    lines = []
    workload = run.workload[profile.role]
    if workload.factor < 1:
        lines.append(
            f"SHORTER REQUESTS: lengths were multiplied by {significant(workload.factor)} to fit this machine's "
            "context, memory and time budget."
        )
    if skipped := profile.skipped:
        lines.append(
            f"OUT OF MEMORY: {len(skipped)} configurations are not in the fit: {', '.join(skipped)}."
        )
    if profile.cut_off:
        lines.append(f"OUT OF TIME: the time budget ended with {profile.cut_off} timings missing.")
    variation = profile.variation
    if variation.above_limit:
        lines.append(
            f"UNSTEADY: {variation.above_limit} of {variation.count} configurations vary by more than 5% from "
            f"run to run (median {share(variation.median)}): something else keeps this machine busy."
        )
    return lines


def _limit_cautions(run: ProfilingDescription, profile: ProfileSummary) -> list[str]:
    lines = [] if profile.verdict.kind in ("possible", "unchecked") else [f"{verdict_of(profile)}."]
    if slow := profile.verdict.slow:
        named = ", ".join(f"{significant(ratio)} in {name} ones" for name, ratio in slow.items())
        lines.append(
            f"SLOW: batches are predicted to take many times the device's least possible time: {named}."
        )
    memory = run.device_memory_bytes
    weights = profile.weight_bytes or 0
    if memory and weights > memory:
        lines.append(
            f"TOO LARGE: the weights take {weights / 1e9:.1f} GB, and the device has {memory / 1e9:.0f} GB."
        )
    return lines


def build(run: ProfilingDescription, summary: ProfilingSummary) -> Document:
    """Return the report; its plots are expected in `plots/` beside it."""
    profiles = list(summary.profiles.values())
    sentences = paragraphs(*(f"**{headlines.of_profile(profile)}**" for profile in profiles))
    cautions = [
        f"{profile.role}: {line}" for profile in profiles for line in profile_cautions(run, profile)
    ]
    sections: list[Blocks] = [
        caution(machine.warnings(run), severe=True),
        sentences,
        caution(cautions),
    ]
    # The first screen shows what the sentence is about: times where they were derived, else how
    # well they were fitted.
    for profile in profiles:
        sections += [
            [_first_figure(profile)],
            _coefficients(profile),
            _accuracy(profile),
            _limit(profile),
        ]
    sections.append(_setting(run, profiles))
    sections += [
        _policy(summary.policy),
        [Folded("Definitions", [BulletList(DEFINITIONS)])],
        provenance(run),
    ]
    title = f"Latency profile: {' and '.join(profile.role for profile in profiles)}"
    return Document.of(title, *sections)


def print_profiles(
    console: "Console", run: ProfilingDescription, summary: ProfilingSummary
) -> None:
    """Print coefficients, accuracy and cautions of every profile."""
    blocks: list[Block] = [*caution(machine.warnings(run), severe=True)]
    for profile in summary.profiles.values():
        if profile.times:
            table = _times_table(profile, with_range=False)
        else:
            table = _derived_table(profile) if profile.is_derived else _coefficient_table(profile)
        blocks += [Paragraph(f"**{headlines.of_profile(profile)}**"), table]
        if profile.source == "measured":
            blocks.append(_regime_table(profile))
        blocks.append(Paragraph(f"physical limit: {verdict_of(profile)}"))
        # The headline of a derived profile already says that it is analytic.
        blocks += caution(
            [
                line
                for line in profile_cautions(run, profile)
                if not line.startswith(("ANALYTIC", "FROM KERNELS"))
            ]
        )
    if summary.policy.per_token_s is not None:
        cost = seconds(summary.policy.per_token_s)
        blocks += paragraphs(f"A stopping criterion costs {cost} per drafted token.")
    render_terminal.show(console, blocks)


def _setting(run: ProfilingDescription, profiles: Sequence[ProfileSummary]) -> Blocks:
    measured = run.time_kind == "measured"
    rows = [
        (
            f"{role} model",
            model_sentence(model) + (", random weights" if model.weights == "random" else ""),
        )
        for role, model in run.models.items()
        if model is not None
    ]
    time = (
        "measured by this machine's clock" if measured else "derived; nothing was run on the device"
    )
    rows += [
        ("device", run.config.device or ABSENT),
        ("dtype", run.config.dtype or ABSENT),
        ("time", time),
    ]
    for profile in profiles:
        factor = significant(run.workload[profile.role].factor)
        counts = f"{profile.train.count} configurations to fit and {profile.test.count} to test"
        rows.append((f"workload of the {profile.role}", f"{counts}, lengths x {factor}"))
    if not measured:
        return [
            Heading("What was run"),
            facts(rows),
            *(Paragraph(ESTIMATES[profile.source]) for profile in profiles),
        ]
    rows.append(("hardware", hardware_sentence(run.hardware)))
    runs = run.config.runs
    protocol = [
        f"Ten untimed forwards, then {runs} passes through the workload, each in its own order and with "
        "its own prompts; cached tokens are computed in advance. One timing covers the forward of the new tokens and "
        f"their argmax; short forwards are repeated, after a first one that is not counted. {RULE}"
    ]
    for profile in profiles:
        variation = profile.variation
        if variation.count:
            protocol.append(
                f"Coefficient of variation over the passes of the {profile.role}: median "
                f"{share(variation.median)}, worst {share(variation.worst)}; {variation.above_limit} of "
                f"{variation.count} configurations exceed 5%."
            )
    return [Heading("What was run"), facts(rows), *paragraphs(*protocol)]


def _coefficients(profile: ProfileSummary) -> Blocks:
    terms: list[list[Cell]] = [
        [regime, *shares.values()] for regime, shares in profile.shares.items()
    ]
    derived = profile.is_derived
    parts = next(iter(profile.shares.values()))
    names = wording.PARTS if profile.times else wording.SYMBOLS
    symbols = [Column(names[name], "share") for name in parts]
    role = profile.role.capitalize()
    blocks: list[Block] = [
        *([Heading(f"{role}: time of a step"), *_times(profile)] if profile.times else []),
        Heading(f"{role}: coefficients"),
        _derived_table(profile) if derived else _coefficient_table(profile),
        Paragraph(f"`{wording.EQUATIONS[profile.form]}`, summed over the batch."),
        Paragraph("Share of the predicted time:"),
        Table(("", *symbols), terms),
        *([] if derived else [_figure(profile, "shares")]),
    ]
    if profile.steps:
        times = {(step.new, step.context, step.batch): step.seconds for step in profile.steps}
        batches = sorted({batch for _, _, batch in times})
        points = sorted({(new, context) for new, context, _ in times})
        rows: list[list[Cell]] = []
        for new, context in points:
            rows.append([new, context, *(times.get((new, context, batch)) for batch in batches)])
        columns = [
            Column("new tokens"),
            Column("context"),
            *(Column(f"batch {batch}", "seconds") for batch in batches),
        ]
        blocks += [
            Paragraph("Seconds per forward:"),
            Table(columns, rows),
            _figure(profile, "steps"),
        ]
    return blocks


def _coefficient_table(profile: ProfileSummary) -> Table:
    rows = [
        (
            code(wording.SYMBOLS[name]),
            wording.UNITS[name],
            value,
            profile.estimates[name],
            " to ".join(map(seconds, profile.intervals[name])),
            profile.limits.get(name),
        )
        for name, value in profile.coefficients.items()
    ]
    estimates = (Column("profile", "seconds"), Column("least squares", "seconds"))
    bounds = ("95% interval (1,000 resamples)", Column("physical bound", "seconds"))
    return Table(("", "seconds per", *estimates, *bounds), rows)


def _derived_table(profile: ProfileSummary) -> Table:
    """Return the coefficients that were derived; those without a symbol are no seconds."""
    rows = []
    for name, value in profile.coefficients.items():
        if name in OF_SOME and not value:
            continue
        symbol = wording.SYMBOLS.get(name)
        bound = profile.limits.get(name)
        if symbol:
            rows.append(
                (
                    code(symbol),
                    wording.UNITS[name],
                    seconds(value),
                    seconds(bound) if bound else ABSENT,
                )
            )
        else:
            rows.append((code(NUMBERS[name][0]), NUMBERS[name][1], significant(value), ABSENT))
    return Table(("", "seconds per", "profile", "physical bound"), rows)


def _times(profile: ProfileSummary) -> Blocks:
    return [Paragraph(TIMES), _times_table(profile), Paragraph(RANGE)]


def _times_table(profile: ProfileSummary, *, with_range: bool = True) -> Table:
    """Return the milliseconds of steps by requests and new tokens, each with its origin and, if
    wanted, its range.
    """
    new = list(dict.fromkeys(time.new for time in profile.times))
    cells = {(time.requests, time.new): _time(time, with_range) for time in profile.times}
    requests = dict.fromkeys(time.requests for time in profile.times)
    rows: list[list[Cell]] = []
    for number in requests:
        times = [cells[number, tokens] for tokens in new]
        rows.append([number, *times])
    titles = [f"{tokens} new token{'s' * (tokens > 1)}" for tokens in new]
    return Table(("requests", *titles), rows)


def _time(time: DerivedTime, with_range: bool) -> str:
    ends = ""
    if with_range and time.range_s:
        low, high = time.range_s
        ends = f" ({span(significant(1e3 * low), significant(1e3 * high))})"
    return f"{significant(1e3 * time.seconds)} ms{ends} {wording.origin_in_words(time.origin)}"


def _accuracy(profile: ProfileSummary) -> Blocks:
    if profile.source != "measured":
        return []
    train = profile.train
    test = profile.test
    rows = [
        ("configurations", count(train.count), count(test.count)),
        ("R²", wording.score(train.r2), wording.score(test.r2)),
        ("adjusted R²", wording.score(train.adjusted_r2), wording.score(test.adjusted_r2)),
        ("RMSE", seconds(train.rmse_s), seconds(test.rmse_s)),
        ("MAE", seconds(train.mae_s), seconds(test.mae_s)),
        ("MAPE", share(train.mape), share(test.mape)),
        ("largest error", seconds(train.max_error_s), seconds(test.max_error_s)),
    ]
    folds = profile.cross_validation
    text = (
        f"Generalisation gap (train R² - test R²): {significant(profile.generalisation_gap)}. {folds.folds}-fold "
        f"cross-validation on the training configurations: mean R² {wording.score(folds.mean_r2)}, standard "
        f"deviation {wording.score(folds.std_r2)}, lowest {wording.score(folds.min_r2)}."
    )
    return [
        Heading(f"{profile.role.capitalize()}: accuracy"),
        Table(("", "train", "test"), rows),
        Paragraph(text),
        _figure(profile, "residuals"),
        _regime_table(profile),
        *([_figure(profile, "regimes")] if len(profile.regimes) > 1 else []),
    ]


def _regime_table(profile: ProfileSummary) -> Table:
    rows: list[list[Cell]] = []
    for regime, parts in profile.regimes.items():
        for part, errors in parts.items():
            cells = (
                errors.count,
                errors.mae_s,
                errors.mape,
                errors.mean_s,
                errors.bias_s,
                errors.max_error_s,
            )
            rows.append([regime, part, *cells])
    relative = (
        Column("configurations", "count"),
        Column("MAE", "seconds"),
        Column("MAPE", "share"),
    )
    times = (Column(title, "seconds") for title in ("mean time", "mean error", "largest error"))
    return Table(("regime", "", *relative, *times), rows)


def _limit(profile: ProfileSummary) -> Blocks:
    heading = Heading(f"{profile.role.capitalize()}: physical limit")
    sentence = verdict_of(profile)
    blocks: list[Block] = [heading, Paragraph(f"{sentence[0].upper()}{sentence[1:]}.")]
    if profile.verdict.kind == "unchecked":
        return blocks
    note = (
        "The physical limit of a forward is the larger of two times: its operations at the device's peak, or its bytes "
        "at full bandwidth, by the data sheet. Impossible: in some regime, mean predictions are more than 5% below the "
        "limit. Doubtful: single predictions are."
    )
    columns = ("regime", Column("mean prediction / mean limit", "share"))
    return [*blocks, Table(columns, list(profile.verdict.regimes.items())), Paragraph(note)]


def _policy(policy: PolicyCosts) -> Blocks:
    if policy.per_token_s is None:
        return []
    rows = [("draft statistics", seconds(policy.statistics_s))]
    if policy.predictor_s is not None:
        rows.append(
            (f"one score of the predictor ({policy.predictor})", seconds(policy.predictor_s))
        )
    else:
        rows.append(("predictor", f"{ABSENT} (none was trained for this pair)"))
    rows.append(("together", seconds(policy.per_token_s)))
    return [
        Heading("What a stopping criterion costs per drafted token"),
        Table(("", "median"), rows),
    ]


def _first_figure(profile: ProfileSummary) -> Figure:
    return _figure(profile, "shares" if profile.is_derived else "predicted")


FIGURES = {
    "shares": "Parts of the predicted time",
    "predicted": "Actual against predicted time of a forward",
    "residuals": "Residuals of the fit",
    "regimes": "Error by regime",
    "steps": "Time of a step by context",
}
"""The title of each figure by the name of its file."""


def _figure(profile: ProfileSummary, name: str) -> Figure:
    return Figure(f"{FIGURES[name]}, {profile.role}", f"plots/{profile.role}_{name}.png")


SPLIT = ("train", "test")


def write_plots(folder: Path, profile: Profile, fit: Fit) -> None:
    """Write every plot of one profile; file names begin with its role."""
    folder.mkdir(parents=True, exist_ok=True)
    where = (
        f"{profile.model} as {profile.role} on {profile.device}, {profile.dtype}, {profile.source}"
    )
    with plot(folder / f"{profile.role}_shares.png", (6.4, 0.6 * len(fit.regimes) + 1.8)) as axes:
        _shares(axes, fit, f"Parts of the predicted time\n({where})")
    if profile.source in DERIVED:
        return
    with plot(folder / f"{profile.role}_predicted.png", (6.4, 6)) as axes:
        _scatter(axes, fit, residuals=False)
        actual_ms = [observation.seconds * 1e3 for observation in fit.observations]
        times_ms = [
            *actual_ms,
            *(_predict_ms(fit, observation) for observation in fit.observations),
        ]
        ends = [max(min(times_ms), 1e-4), max(times_ms)]
        axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=":")
        axes.set(
            ylabel="actual (ms)", title=f"Actual against predicted time of a forward\n({where})"
        )
        logarithmic(axes, "y")
    with plot(folder / f"{profile.role}_residuals.png", (7.2, 5)) as axes:
        _scatter(axes, fit, residuals=True)
        axes.axhline(0, color=GREY, linewidth=1, linestyle=":")
        axes.set(ylabel="actual - predicted (ms)", title=f"Residuals\n({where})")
    if len(fit.regimes) > 1:
        with plot(folder / f"{profile.role}_regimes.png", (9, 4.6), 1, 2) as panels:
            _regimes(panels, fit, f"Error by regime ({where})")
    if profile.form == "context":
        _steps(folder / f"{profile.role}_steps.png", fit, where)


def _scatter(axes: "Axes", fit: Fit, *, residuals: bool) -> None:
    """Draw actual times or residuals over predicted ones: training configurations hollow, test ones
    filled.
    """
    for index, regime in enumerate(fit.regimes):
        for part in SPLIT:
            observations = [
                observation
                for observation in fit.observations
                if (observation.configuration.regime, observation.configuration.part)
                == (regime, part)
            ]
            if not observations:
                continue
            x = [_predict_ms(fit, observation) for observation in observations]
            y = [
                observation.seconds * 1e3 - residuals * predicted
                for observation, predicted in zip(observations, x, strict=True)
            ]
            face = COLOURS[index] if part == "test" else "none"
            axes.plot(
                x,
                y,
                MARKERS[index],
                label=f"{regime}, {part}",
                markerfacecolor=face,
                markeredgecolor=COLOURS[index],
                linestyle="none",
                markersize=6,
            )
    axes.set(xlabel="predicted (ms)")
    logarithmic(axes, "x")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)


def _regimes(panels: "Iterable[Axes]", fit: Fit, title: str) -> None:
    figures: tuple[tuple[Callable[[Accuracy], float | None], float, str], ...] = (
        (lambda accuracy: accuracy.mae_s, 1e3, "mean absolute error (ms)"),
        (lambda accuracy: accuracy.mape, 1e2, "mean absolute percentage error (%)"),
    )
    for axes, (of, scale, label) in zip(panels, figures, strict=True):
        for index, part in enumerate(SPLIT):
            heights = [(of(fit.accuracy(part, regime)) or 0.0) * scale for regime in fit.regimes]
            x = np.arange(len(heights)) + (index - 0.5) * 0.38
            axes.bar(
                x,
                heights,
                0.38,
                color=COLOURS[index],
                hatch=HATCHES[index],
                edgecolor="black",
                label=part,
            )
        axes.set_xticks(range(len(fit.regimes)), fit.regimes)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize=9)
    axes.figure.suptitle(title)


def _shares(axes: "Axes", fit: Fit, title: str) -> None:
    shares = {regime: fit.shares(regime) for regime in fit.regimes}
    left = np.zeros(len(shares))
    names = next(iter(shares.values())) if fit.derived else fit.coefficients
    for index, name in enumerate(names):
        widths = np.array([parts[name] * 100 for parts in shares.values()])
        label = (
            wording.PARTS[name]
            if fit.derived
            else f"{wording.SYMBOLS[name]}, per {wording.UNITS[name].partition(' (')[0]}"
        )
        hatch = HATCHES[index % len(HATCHES)]
        axes.barh(
            range(len(shares)),
            widths,
            left=left,
            label=label,
            edgecolor="black",
            color=COLOURS[index],
            hatch=hatch,
        )
        left += widths
    axes.set_yticks(range(len(shares)), list(shares))
    axes.set(xlabel="share of the predicted time (%)", title=title, xlim=(0, 100))
    axes.invert_yaxis()
    axes.figure.legend(fontsize=9, loc="outside lower center", ncol=2)


def _steps(path: Path, fit: Fit, where: str) -> None:
    """Draw time against context: a panel per number of new tokens, a line per batch size."""
    grid = [
        observation for observation in fit.observations if observation.configuration.part == "train"
    ]
    counts = sorted({observation.configuration.rows[0][0] for observation in grid})
    with plot(path, (1.6 + 3.6 * len(counts), 4.4), 1, len(counts)) as panels:
        for axes, new in zip(np.atleast_1d(panels), counts, strict=True):
            steps = [
                observation for observation in grid if observation.configuration.rows[0][0] == new
            ]
            for index, batch in enumerate(sorted({len(step.configuration.rows) for step in steps})):
                line = [step for step in steps if len(step.configuration.rows) == batch]
                contexts = [step.configuration.rows[0][1] for step in line]
                colour = COLOURS[index]
                measured_ms = [step.seconds * 1e3 for step in line]
                axes.plot(
                    contexts,
                    measured_ms,
                    MARKERS[index],
                    color=colour,
                    label=str(batch),
                    markersize=6,
                )
                fitted_ms = [_predict_ms(fit, step) for step in line]
                axes.plot(contexts, fitted_ms, color=colour, linestyle=LINES[index], linewidth=1)
            axes.set(
                xlabel="context (tokens)",
                ylabel="ms per forward",
                title=f"{new} new",
                ylim=(0, None),
            )
            axes.grid(alpha=0.3)
        axes.figure.suptitle(f"Time of a step: points measured, lines fitted\n({where})")
        axes.legend(fontsize=9, title="batch")


def _predict_ms(fit: Fit, observation: Observation) -> float:
    return fit.predict(observation.configuration) * 1e3
