"""Rounds as they are set up ahead, a row each."""

from specbench_kit.serving.counter_rng import Floats

FIELDS = (
    "response", "draft_s", "drafted", "submitted", "accepted", "committed", "context", "prompt", "tokens", "begins",
    "ends", "proactive", "asked_s", "at_s", "gap_s", "up_s", "down_s", "slack_s", "promise_s", "expected",
)  # fmt: skip
_PLACE = {name: place for place, name in enumerate(FIELDS)}
RECORDED = FIELDS[:6]
"""What is kept of every round."""


class RoundRows:
    """Rounds of some devices, one a row; a field is a column.

    `drafted` is how many forwards the draft model makes before a draft is sent. `prompt` and `tokens` are the
    response's, `context` is the tokens before the round. A round that `begins` a response is asked for as `Asks` says.
    Its deadline leaves the server `slack_s`, and its answer is due `promise_s` after the response's start. What comes
    of it is known once it was answered.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Floats) -> None:
        self._rows = rows

    def __getitem__(self, field: str) -> Floats:
        return self._rows[:, _PLACE[field]]

    @property
    def recorded(self) -> Floats:
        """The fields `RECORDED`, in their order."""
        return self._rows[:, : len(RECORDED)]
