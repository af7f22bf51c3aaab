"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("bench")(
    CommandEntry(
        "specbench_kit.studies.bench.command:bench",
        "Benchmark",
        "Benchmark methods on a dataset, check that outputs are lossless, and write a report.",
        example="skit bench --method fixed-k --method suffix --limit 20",
    )
)
