"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("import")(
    CommandEntry(
        "specbench_kit.studies.interchange.command:import_run",
        "Results",
        "Convert a result file of another tool into a run directory, so that reports can include it.",
        "A file that records what was accepted in each step becomes a trace, for replay with --deployment.",
    )
)
commands.register("export")(
    CommandEntry(
        "specbench_kit.studies.interchange.command:export_run",
        "Results",
        "Write the requests of a run as a file for another tool.",
    )
)
commands.register("schema")(
    CommandEntry(
        "specbench_kit.studies.interchange.schema_command:schema",
        "The kit",
        "Print the JSON Schema of a file format, or list the formats.",
    )
)
