"""`skit serve`: verify the drafts of devices that connect over the network."""

import os

from specbench_kit.cli.common import say, say_target
from specbench_kit.live.connection_options import host_and_port
from specbench_kit.live.server.settings import ServeSettings


def serve(settings: ServeSettings) -> None:
    """Load the target and verify drafts until the server is stopped."""
    from rich.console import Console

    # gRPC writes a line for every failed handshake, so that any stranger could fill a disk.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    console = Console(stderr=True)
    say_target(console, settings.target)
    with console.status("loading the target"):
        from specbench_kit.live.server.run import make_service
        from specbench_kit.live.server.run import serve as run

        service, facts = make_service(settings)
    say(console, "; ".join(f"{name}: {value}" for name, value in facts.items()))

    def ready(port: int) -> None:
        say(console, f"listening on {host_and_port(settings.listen)[0]}:{port}")

    with console.status("no device is connected") as status:
        service.report = lambda activity: status.update(str(activity))
        run(settings, service, ready)
