"""Options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.option import DECODING, DEPLOYMENT, MODELS, OUTPUT, RUN

DatasetOption = Annotated[
    str, typer.Option("--dataset", help="A name from `skit list datasets`, or a .jsonl file.", rich_help_panel=RUN)
]
DATASET = "gsm8k"
DatasetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        help="A name from `skit list datasets`, or a .jsonl file; may be given several times.",
        show_default=DATASET,
        rich_help_panel=RUN,
    ),
]
LimitOption = Annotated[
    int | None, typer.Option(help="Number of prompts, drawn by --seed; all if left out.", rich_help_panel=RUN)
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Local datasets; SKIT_DATA_DIR if left out.", rich_help_panel=RUN)
]
SampleOption = Annotated[
    bool, typer.Option(help="Whether a bundled sample may stand in for the dataset.", rich_help_panel=RUN)
]
TargetOption = Annotated[str, typer.Option(help="Hugging Face id, local folder, or 'bundled'.", rich_help_panel=MODELS)]
DraftOption = Annotated[str, typer.Option(help="Hugging Face id, local folder, or 'bundled'.", rich_help_panel=MODELS)]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", rich_help_panel=MODELS)]
DtypeOption = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=MODELS)]
MaxNewTokensOption = Annotated[int, typer.Option(help="Longest output.", rich_help_panel=DECODING)]
BatchSizeOption = Annotated[int, typer.Option(help="Requests decoded together.", rich_help_panel=DECODING)]
SeedOption = Annotated[int, typer.Option(help="Seed of prompts drawn and tokens sampled.", rich_help_panel=DECODING)]
DeploymentOption = Annotated[
    str,
    typer.Option(
        help="Whose time: a name from `skit list deployments`, or a .toml file. 'local' is measured.",
        rich_help_panel=DEPLOYMENT,
    ),
]
OutOption = Annotated[Path, typer.Option(help="Folder that run directories are made in.", rich_help_panel=OUTPUT)]
ForceSaveOption = Annotated[
    bool,
    typer.Option("--force", help="Save what was timed on a disturbed machine all the same.", rich_help_panel=OUTPUT),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End stdout with one line of JSON; tables go to stderr.", rich_help_panel=OUTPUT)
]
