"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("profile-server")(
    CommandEntry(
        "specbench_kit.studies.server_profile.command:profile_server",
        "Latencies",
        "Profile a `skit serve` server over the network: the time of its verifications and of messages.",
        example="skit profile-server --server 127.0.0.1:8451 --to server.toml",
    )
)
