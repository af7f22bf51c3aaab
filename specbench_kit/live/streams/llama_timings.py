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
        """Return the counts of speculation, with nothing drafted where the answer does not count drafts.

        llama.cpp does not count rounds, but each commits one token more than it accepts; the first token of an answer
        comes from the prompt's forward. An answer without drafts looks the same at a server that speculates and at one
        that does not.
        """
        if self.predicted_n is None:
            return DraftCounts(None, self.draft_n, self.draft_n_accepted) if self.draft_n else None
        accepted = (self.draft_n_accepted if self.draft_n else 0) or 0
        return DraftCounts(max(0, self.predicted_n - 1 - accepted), self.draft_n or 0, accepted)
