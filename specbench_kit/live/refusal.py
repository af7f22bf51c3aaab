"""A frame that is not served, and why."""

from specbench_kit.live.wire import Status


class Refusal(Exception):
    """One session's, or where it is raised before there is one, one stream's."""

    def __init__(self, status: Status, reason: str, retry_ms: int = 0) -> None:
        super().__init__(f"{status.name}: {reason}")
        self.status, self.reason, self.retry_ms = status, reason, retry_ms
