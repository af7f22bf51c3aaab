"""`skit why`: why speculation is slow or fast at a server."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

from specbench_kit.cli.common import JsonOption, command_line, load_dataset, tell_study
from specbench_kit.core.common_options import DatasetOptions
from specbench_kit.core.option import FIRST, Given
from specbench_kit.studies.why.settings import OF_FOLDERS, WhySettings

if TYPE_CHECKING:
    from rich.console import Console

    from specbench_kit.studies.why.kind import WhyStudy


OF_DATASETS = OF_FOLDERS.of(*(field.name for field in fields(DatasetOptions)))


def why(
    options: Annotated[Given[WhySettings], FIRST.of("dataset"), OF_DATASETS],
    as_json: Annotated[JsonOption, FIRST] = False,
) -> None:
    """Ask the servers or read the folders, and print the verdict."""
    from rich.console import Console

    settings = options.make(argv=command_line())
    console = Console(stderr=as_json)
    tell_study(console, _explain(settings, console), as_json)


def _explain(settings: WhySettings, console: "Console") -> "WhyStudy":
    from specbench_kit.cli.progress import stepping_bar
    from specbench_kit.studies.why import run

    if settings.folders:
        return run.explain_folders(settings)
    sources = DatasetOptions(
        dataset=settings.dataset, data_dir=settings.data_dir, sample=settings.sample
    )
    dataset = load_dataset(sources, settings.limit, settings.seed, console)
    with stepping_bar() as progress:
        return run.explain_servers(settings, dataset, progress)
