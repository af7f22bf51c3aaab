"""The times and counts in the last event of llama.cpp's streams."""

from msgspec import Struct

from specbench_kit.metrics.ab.answers import DraftCounts


class Timings(Struct):
    """The counts of one answer: generated tokens, and drafted and accepted ones where the server speculates."""

    predicted_n: int | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    cache_n: int | None = None

    def drafts(self) -> DraftCounts | None:
        """Return the counts of speculation; None for a server that drafted nothing.

        llama.cpp does not count rounds, but each commits one token more than it accepts, and so does the prompt's.
        """
        if not self.draft_n:
            return None
        rounds = None
        if self.predicted_n is not None and self.draft_n_accepted is not None:
            rounds = max(0, self.predicted_n - self.draft_n_accepted)
        return DraftCounts(rounds, self.draft_n, self.draft_n_accepted)
