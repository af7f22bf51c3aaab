"""`skit simulate`: many devices that share one verification server."""

from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options, serving
from specbench_kit.cli.options import OUTPUT


def simulate(
    preset: serving.PresetOption = None,
    system: serving.SystemOption = None,
    scheduler: serving.SchedulerOption = None,
    method: serving.MethodOption = None,
    acceptance: serving.AcceptanceOption = None,
    label: serving.LabelOption = None,
    deployment: serving.DeploymentsOption = None,
    replaced: serving.SetOption = None,
    kv_tokens: serving.KvOption = None,
    max_batch: serving.MaxBatchOption = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="How many devices: 20, 10,20,40, or from:to:step.", show_default="16", rich_help_panel=serving.LOAD
        ),
    ] = None,
    slo: serving.SloOption = None,
    slo_scale: serving.SloScaleOption = None,
    objective: serving.ObjectiveOption = None,
    arrivals: serving.ArrivalsOption = None,
    arrivals_scale: serving.ArrivalsScaleOption = None,
    prompt_tokens: serving.PromptTokensOption = None,
    output_tokens: serving.OutputTokensOption = None,
    estimator_factor: serving.FactorOption = None,
    estimator_noise: serving.NoiseOption = None,
    estimator_profile: serving.EstimatorProfileOption = None,
    guard_s: serving.GuardOption = None,
    duration_s: serving.DurationOption = None,
    warmup_s: serving.WarmUpOption = None,
    seeds: serving.SeedsOption = None,
    seed: serving.FirstSeedOption = None,
    jobs: serving.JobsOption = None,
    backend: serving.BackendOption = None,
    dataset: options.DatasetOption = "gsm8k",
    limit: serving.LimitOption = serving.LIMIT,
    data_dir: options.DataDirOption = None,
    sample: options.SampleOption = True,
    target: options.TargetOption = "bundled",
    draft: options.DraftOption = "bundled",
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    max_new_tokens: options.MaxNewTokensOption = 128,
    max_draft: serving.MaxDraftOption = None,
    events: Annotated[
        bool, typer.Option("--events", help="Keep every round, response and batch as Parquet.", rich_help_panel=OUTPUT)
    ] = False,
    timeline: Annotated[
        str | None,
        typer.Option(help="FROM:TO, simulated seconds of each system to keep for Perfetto.", rich_help_panel=OUTPUT),
    ] = None,
    out: serving.OutFolderOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Simulate many devices that draft for one server: who keeps which token speed, and what keeps the others."""
    serving.run_command("simulate", dict(locals()))
