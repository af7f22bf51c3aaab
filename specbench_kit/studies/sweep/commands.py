"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("sweep")(
    CommandEntry(
        "specbench_kit.studies.sweep.command:sweep",
        "Benchmark",
        "Compare methods over a range of deployments or options, and find where they stop paying off.",
        example="skit sweep --method fixed-k --method threshold:max_draft=8 --deployment wan --limit 20",
    )
)
commands.register("batch-sizes")(
    CommandEntry(
        "specbench_kit.studies.sweep.batch_sizes_command:batch_sizes",
        "Benchmark",
        "Show up to which batch size each method pays off: throughput against time per token.",
        example="skit batch-sizes --method fixed-k",
    )
)
