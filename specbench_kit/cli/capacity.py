"""`skit capacity`: how many devices one verification server can take."""

from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.cli import options, serving


def capacity(
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
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Share of responses that may break their SLO.", show_default="0.05", rich_help_panel=serving.LOAD
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(help="Devices that are tried at most.", show_default="4096", rich_help_panel=serving.LOAD),
    ] = None,
    resolution: Annotated[
        float | None,
        typer.Option(
            help="Share of the capacity that may be left open.", show_default="0.01", rich_help_panel=serving.LOAD
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
    out: serving.OutFolderOption = Path("results"),
    as_json: options.JsonOption = False,
) -> None:
    """Search for the most devices that one server can promise a token speed to."""
    serving.run_command("capacity", dict(locals()))
