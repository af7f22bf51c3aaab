"""Rounds that are set up ahead, one per row."""

from specbench_kit.serving.arrays import Floats

FIELDS = (
    "response", "draft_s", "drafted", "submitted", "accepted", "committed", "context", "prompt", "tokens", "begins",
    "ends", "proactive", "requested_s", "earliest_s", "gap_s", "up_s", "down_s", "round_budget_s",
    "response_budget_s", "expected_tokens",
)  # fmt: skip
_COLUMN = {name: column for column, name in enumerate(FIELDS)}
RECORDED = FIELDS[:6]
"""Fields that a simulation's result keeps of every round."""


class RoundRows:
    """Rounds of some devices: a row per round, a column per field.

    `response` is the response's number on its device, `prompt` and `tokens` are its lengths, and `requested_s` is when
    its request arrived; a round that `begins` it starts at `earliest_s` or `gap_s` after the previous response (see
    `NextRequests`). `context` counts the tokens before the round, `drafted` the draft model's forwards before it
    submits. The verifier has `round_budget_s` from the arrival of the draft to the round's deadline; the whole
    response is on schedule if the round is verified `response_budget_s` after the response's start. `submitted` and
    `accepted` may still shrink, and `committed` and `ends` are set, when the round is concluded.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Floats) -> None:
        self._rows = rows

    def __getitem__(self, field: str) -> Floats:
        return self._rows[:, _COLUMN[field]]

    @property
    def recorded(self) -> Floats:
        """The fields `RECORDED`, in their order."""
        return self._rows[:, : len(RECORDED)]
