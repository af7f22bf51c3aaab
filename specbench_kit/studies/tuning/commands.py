"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("tune")(
    CommandEntry(
        "specbench_kit.studies.tuning.command:tune",
        "Benchmark",
        "Choose the options of each method by replaying a trace, with the same budget for all methods.",
    )
)
