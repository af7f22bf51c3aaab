"""`skit list experiments`."""

from specbench_kit.cli.listing import ListEntry, lists

RUN_AS = {
    "simulate": "simulation",
    "capacity": "search for capacity",
    "bench": "decoding",
    "train": "training",
    "profile": "profiling",
    "law": "closed form",
}
"""What `skit reproduce` does for an experiment, by its command."""


@lists("experiments")
def _list_experiments() -> list[ListEntry]:
    from specbench_kit.papers.experiment import experiments, worlds

    papers = worlds()
    from specbench_kit.studies.field.tables import tables

    published: list[ListEntry] = [
        {
            "name": name,
            "summary": f"{experiment.summary} ({RUN_AS[experiment.command]}, {experiment.takes})",
            "source": experiment.source,
            "takes": experiment.takes,
            "group": papers[experiment.paper].title,
        }
        for name, experiment in experiments().items()
    ]
    measured: list[ListEntry] = [
        {
            "name": name,
            "summary": f"{table.title} (predicted, seconds)",
            "source": table.source,
            "takes": "seconds",
            "group": "Measured by others",
        }
        for name, table in tables().items()
    ]
    return [*published, *measured]
