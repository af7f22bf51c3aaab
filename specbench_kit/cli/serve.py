"""`skit serve`: verify the drafts of devices elsewhere."""

from specbench_kit.cli.common import say
from specbench_kit.live.server.settings import Settings, host_and_port


def serve(settings: Settings) -> None:
    """Verify the drafts of many devices, each of which runs `skit bench --server` or `skit load`."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("loading the target"):
        from specbench_kit.live.server.run import make
        from specbench_kit.live.server.run import serve as run

        service, counters, told = make(settings)
    say(console, "; ".join(f"{name}: {value}" for name, value in told.items()))

    def ready(port: int) -> None:
        say(console, f"listening on {host_and_port(settings.listen)[0]}:{port}")

    with console.status("nobody is here yet") as status:
        service.report = lambda doing: status.update(str(doing))
        run(settings, service, counters, ready)
