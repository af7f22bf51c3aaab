"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("report")(
    CommandEntry(
        "specbench_kit.studies.reporting.command:report",
        "Results",
        "Write a report on one run, or on several runs together.",
    )
)
commands.register("compare")(
    CommandEntry(
        "specbench_kit.studies.reporting.command:compare",
        "Results",
        "Compare runs of the same prompts, models, lengths, sampling and clock.",
    )
)
