"""The commands of this study, by which `skit --help` knows them: it imports nothing else of it."""

from specbench_kit.cli.commands import CommandEntry, commands

commands.register("serve")(
    CommandEntry(
        "specbench_kit.studies.live_server.command:serve",
        "Running servers",
        "Serve a target that verifies drafts over the network, for `skit bench --server` and `skit load`.",
        example="skit serve --target bundled --listen 127.0.0.1:8451",
    )
)
