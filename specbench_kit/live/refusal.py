"""The error that refuses a frame."""

from specbench_kit.live.wire import Status


class Refusal(Exception):
    """Refuses one frame of a session, or ends the whole stream if the frame belongs to no session.

    `retry_ms` is after how long the frame may be sent again, if at all.
    """

    def __init__(self, status: Status, reason: str, retry_ms: int = 0) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status, self.reason, self.retry_ms = status, reason, retry_ms
