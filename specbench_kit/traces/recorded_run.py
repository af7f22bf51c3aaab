"""What a trace says of the run that recorded it."""

from typing import Annotated

from msgspec import Meta

from specbench_kit.runs.document import RunDescription


class RecordedRun(RunDescription, kw_only=True):
    """The run that recorded a trace, or that wrote the file which a trace was imported from.

    Every field may be missing: `TraceFile` raises an error for one that its reader cannot do
    without.
    """

    prompts: Annotated[
        list[str] | None, Meta(description="fingerprints of the prompts; null if it names none")
    ] = None
    statistics: Annotated[
        str, Meta(description="how the statistics of a drafted token were timed")
    ] = "timed alone"

    def model_hash(self, role: str) -> str | None:
        """Return the hash of the model with this role; None if that is not known."""
        model = self.models.get(role)
        return model.hash if model else None
