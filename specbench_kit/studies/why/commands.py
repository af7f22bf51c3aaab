"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("why")(
    CommandEntry(
        "specbench_kit.studies.why.command:why",
        "Running servers",
        "Say why speculation is slow or fast at a running server, from its counters and a few timed requests.",
        "The page begins with a verdict: it pays, it does not, or it cannot be told. Findings follow, each with "
        "its number, where that comes from, and what to try. Two servers, one of them without speculation, tell "
        "more than one; folders of skit ab and skit bench are read without any server.",
        example="skit why plain=llama-cpp://127.0.0.1:8080 spec=llama-cpp://127.0.0.1:8081",
    )
)
