"""A profiling run as a Markdown report: what a forward costs, and how far to trust the model of it."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.render_markdown import blocks as markdown_of
from specbench_kit.reports.writing import machine
from specbench_kit.reports.writing import profiles as wording
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share, significant
from specbench_kit.reports.writing.markup import code, document, folded, table, warning
from specbench_kit.reports.writing.provenance import provenance
from specbench_kit.reports.writing.wording import hardware_sentence, model_sentence

Fields = Mapping[str, Any]

METRICS = {
    "count": ("configurations", count),
    "r2": ("R²", wording.score),
    "adjusted_r2": ("adjusted R²", wording.score),
    "rmse_s": ("RMSE", seconds),
    "mae_s": ("MAE", seconds),
    "mape": ("MAPE", share),
    "max_error_s": ("largest error", seconds),
}
RULE = (
    "Lengths are multiplied by one factor, the largest of a fixed list that context, memory and the time budget allow."
)

ESTIMATE = (
    "Each forward takes its operations and then its bytes, one after the other, at the shares of peak and bandwidth "
    "that the software reaches, and what the software adds to a step and to a layer; where its host takes longer to "
    "launch all that, the host's time. Real kernels overlap operations and bytes in part. Nothing was fitted: the "
    "coefficients are the roofline's own."
)


def render(run: Fields, summary: Fields) -> str:
    """The report of what `run.json` and `summary.json` hold; its plots lie beside it in `plots/`."""
    profiles = list(summary["profiles"].values())
    sections = [_title(run, profiles), _setting(run, profiles)]
    for profile in profiles:
        sections += [
            _section(f"{profile['role'].capitalize()}: coefficients", *_coefficients(profile)),
            *([_section(f"{profile['role'].capitalize()}: accuracy", *_accuracy(profile))] if _fitted(profile) else []),
            _section(f"{profile['role'].capitalize()}: physical limit", *_limit(profile)),
        ]
    sections += [_policy(summary["policy"]), _definitions(), markdown_of(provenance(run))]
    return document(sections)


def _fitted(profile: Fields) -> bool:
    return bool(profile["source"] == "measured")


def _title(run: Fields, profiles: list[Fields]) -> str:
    names = " and ".join(profile["role"] for profile in profiles)
    first = warning(machine.warnings(run))
    parts = [f"# Latency profile: {names}", *filter(None, [first])]
    parts += [f"**{wording.headline(profile)}**" for profile in profiles]
    warnings = [f"{profile['role']}: {line}" for profile in profiles for line in wording.cautions(run, profile)]
    return "\n\n".join([*parts, *filter(None, [warning(warnings)])])


def _setting(run: Fields, profiles: list[Fields]) -> str:
    measured = run["time_kind"] == "measured"
    time = "measured by this machine's clock" if measured else "derived from a data sheet, nothing was run"
    rows = [
        *((f"{role} model", _model(model)) for role, model in run["models"].items()),
        ("device", run["config"]["device"]),
        ("dtype", run["config"]["dtype"]),
        ("time", time),
    ]
    for profile in profiles:
        done = run["workload"][profile["role"]]
        counts = f"{profile['train']['count']} to fit on and {profile['test']['count']} to test on"
        rows.append((f"workload of the {profile['role']}", f"{counts}, lengths x {significant(done['factor'])}"))
    if measured:
        rows.append(("hardware", hardware_sentence(run.get("hardware") or {})))
    return _section("What was run", table(["", ""], rows), _protocol(run, profiles) if measured else ESTIMATE)


def _model(model: Fields) -> str:
    return model_sentence(dict(model)) + (", random weights" if model.get("weights") == "random" else "")


def _protocol(run: Fields, profiles: list[Fields]) -> str:
    lines = [
        f"Ten untimed forwards, then {run['config']['runs']} runs through the workload, each in an order and with "
        "prompts of its own; what counts as cached was computed before. A timing is the forward of the new tokens and "
        f"their argmax; short ones are repeated, after one that is not counted. {RULE}"
    ]
    for profile in profiles:
        variation = profile["variation"]
        if variation["count"]:
            lines.append(
                f"Coefficient of variation over the runs of the {profile['role']}: median {share(variation['median'])}"
                f", worst {share(variation['worst'])}; {variation['above_limit']} of {variation['count']} "
                "configurations lie above 5%."
            )
    return "\n\n".join(lines)


def _coefficients(profile: Fields) -> list[str]:
    rows = [
        (
            code(wording.SYMBOLS[name]),
            wording.UNITS[name],
            seconds(value),
            seconds(profile["estimates"][name]),
            " to ".join(seconds(bound) for bound in profile["intervals"][name]),
            seconds(profile["limits"].get(name)),
        )
        for name, value in profile["coefficients"].items()
    ]
    header = ["", "seconds per", "profile", "least squares", "95% interval (1,000 resamples)", "physical bound"]
    terms = [(name, *(share(value) for value in profile["shares"][name].values())) for name in profile["shares"]]
    symbols = [wording.SYMBOLS[name] for name in profile["coefficients"]]
    parts = [f"`{wording.EQUATIONS[profile['form']]}`, summed over the batch.", table(header, rows)]
    parts += ["Share of the predicted time:", table(["", *symbols], terms), _image(profile, "shares")]
    if profile["steps"]:
        parts += ["Seconds per forward:", _steps(profile), _image(profile, "steps")]
    return parts


def _steps(profile: Fields) -> str:
    cells = {(step["new"], step["context"], step["batch"]): step["seconds"] for step in profile["steps"]}
    batches = sorted({batch for _, _, batch in cells})
    rows = [
        (new, context, *(seconds(cells.get((new, context, batch))) for batch in batches))
        for new, context in sorted({(new, context) for new, context, _ in cells})
    ]
    return table(["new tokens", "context", *(f"batch {batch}" for batch in batches)], rows)


def _accuracy(profile: Fields) -> list[str]:
    parts = {"train": profile["train"], "test": profile["test"]}
    rows = [(label, *(show(found.get(name)) for found in parts.values())) for name, (label, show) in METRICS.items()]
    folds = profile["cross_validation"]
    regimes = [
        (
            name,
            part,
            *(show(found[key]) for key, (_, show) in METRICS.items() if key in ("count", "mae_s", "mape")),
            seconds(found["mean_s"]),
            seconds(found["bias_s"]),
            seconds(found["max_error_s"]),
        )
        for name, split in profile["regimes"].items()
        for part, found in split.items()
    ]
    header = ["regime", "", "configurations", "MAE", "MAPE", "mean time", "mean error", "largest error"]
    told = (
        f"Generalisation gap (train R² - test R²): {significant(profile['generalisation_gap'])}. {folds['folds']}-fold "
        f"cross-validation on the training configurations: R² {wording.score(folds['mean_r2'])} on average, standard "
        f"deviation {folds['std_r2']:.4f}, lowest {wording.score(folds['min_r2'])}."
    )
    fits = f"{_image(profile, 'predicted')} {_image(profile, 'residuals')}"
    errors = _image(profile, "regimes") if len(profile["regimes"]) > 1 else ""
    return [table(["", *parts], rows), told, fits, table(header, regimes), errors]


def _limit(profile: Fields) -> list[str]:
    verdict = profile["verdict"]
    sentence = wording.verdict_of(profile)
    text = f"{sentence[0].upper()}{sentence[1:]}."
    if verdict["kind"] == "unchecked":
        return [text]
    rows = [(name, share(ratio)) for name, ratio in verdict["regimes"].items()]
    note = (
        "The limit of a forward is the larger of its operations at the device's peak and its bytes at full bandwidth, "
        "by the data sheet. Impossible: predictions fall short of it by over 5% on average in some regime. Doubtful: "
        "single ones do."
    )
    return [text, table(["regime", "mean prediction / mean limit"], rows), note]


def _policy(policy: Fields) -> str:
    if not policy:
        return ""
    rows = [("draft statistics", seconds(policy["statistics_s"]))]
    if "predictor_s" in policy:
        rows.append((f"one score of the predictor ({policy['predictor']})", seconds(policy["predictor_s"])))
    else:
        rows.append(("predictor", f"{ABSENT} (none was trained for this pair)"))
    rows.append(("together", seconds(policy["per_token_s"])))
    return _section("What a stop rule costs per drafted token", table(["", "median"], rows))


def _definitions() -> str:
    meanings = {
        "new": "tokens that a forward computes, summed over its requests",
        "cached": "tokens whose KV is there already",
        "interactions": "new x (cached + new) of each request",
        "context": "tokens before each new token, summed over the new tokens",
        "MAPE": "mean of |predicted - actual| / actual",
        "mean error": "mean of predicted - actual",
        "compute-bound": "prompts, nothing cached; memory-bound: a few new tokens after many cached; mixed: both",
    }
    return folded("Definitions", "\n".join(f"- {name}: {meaning}" for name, meaning in meanings.items()))


def _image(profile: Fields, name: str) -> str:
    return f"![{name}](plots/{profile['role']}_{name}.png)"


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *filter(None, parts)])
