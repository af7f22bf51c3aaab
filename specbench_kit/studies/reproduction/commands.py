"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("reproduce")(
    CommandEntry(
        "specbench_kit.studies.reproduction.command:reproduce",
        "Results",
        "Reproduce experiments of papers and compare with the published numbers.",
        example="skit reproduce specedge/figure-10",
    )
)
