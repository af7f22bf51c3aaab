"""A server that ends tells every device whose round waits to come again."""

from live_server import CALLER, make_server, serving
from offline_server import ANSWER, PROMPT

from specbench_kit.live.connection import Connection
from specbench_kit.live.wire import Status, Up


def test_rounds_that_wait_are_told_to_come_again() -> None:
    service = make_server()
    service.handler.batch_runner.submit = lambda _: None  # type: ignore[method-assign]
    with serving(service) as (_, address):
        connection = Connection(address, CALLER)
        connection.send(Up(open={"session": "s", "prompt": PROMPT}))
        connection.receive(60)
        connection.send(
            Up(draft={"session": "s", "round": 4, "base": len(PROMPT), "tokens": ANSWER[:2]})
        )
        connection.send(Up(ping={"count": 1}))
        connection.receive(60)
        service.stop()
        refused = connection.receive(60)[1].refused
    assert (refused.session, refused.round, Status(refused.status)) == ("s", 4, Status.GOING_AWAY)
    assert refused.retry_ms > 0
    service.stop()  # the server has ended: who asks a second time, as by another Ctrl-C, is told nothing
