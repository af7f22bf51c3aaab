"""Options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated

import typer

from specbench_kit.option import DEPLOYMENT, OUTPUT, RUN

DATASET = "gsm8k"
DatasetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        help="A name from `skit list datasets`, hub:owner/name?split=test&prompt=question, or a .jsonl or .parquet "
        "file; may be given several times.",
        show_default=DATASET,
        rich_help_panel=RUN,
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Local datasets; SKIT_DATA_DIR if left out.", rich_help_panel=RUN)
]
SampleOption = Annotated[
    bool, typer.Option(help="Whether a bundled sample may stand in for the dataset.", rich_help_panel=RUN)
]
DeploymentOption = Annotated[
    str,
    typer.Option(
        help="Whose time: a name from `skit list deployments`, or a .toml file. 'local' is measured.",
        rich_help_panel=DEPLOYMENT,
    ),
]
OutOption = Annotated[Path, typer.Option(help="Folder that run directories are made in.", rich_help_panel=OUTPUT)]
JsonOption = Annotated[
    bool, typer.Option("--json", help="End stdout with one line of JSON; tables go to stderr.", rich_help_panel=OUTPUT)
]
