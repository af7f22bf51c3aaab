"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("suite")(
    CommandEntry(
        "specbench_kit.studies.suite.command:suite",
        "Benchmark",
        "Run a frozen suite without any model, check a file of its results, or make the board of such files.",
        "skit suite run v1 evaluates policies in every cell of suite v1: a recorded pair and two synthetic ones "
        "under eight deployments, and 150 devices at one server. --server, given twice, measures running servers. "
        "--submit writes one file, which skit suite check FILE runs again and compares to the last digit, and "
        "skit suite board FOLDER makes a static site of a folder of such files.",
        example="skit suite run v1 --method fixed-k --method threshold --quick",
    )
)
