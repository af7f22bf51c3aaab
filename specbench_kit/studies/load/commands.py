"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("load")(
    CommandEntry(
        "specbench_kit.studies.load.command:load",
        "Running servers",
        "Load a `skit serve` server with many devices, whose drafts come from a trace, and measure its answers.",
        example="skit load --server 127.0.0.1:8451 --trace trace.parquet --devices 8",
    )
)
commands.register("validate")(
    CommandEntry(
        "specbench_kit.studies.load.command:validate",
        "Running servers",
        "Simulate a run of `skit load` and compare it with the measurement.",
    )
)
