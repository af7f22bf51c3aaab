"""A bound on the bytes that are read in a second."""

from dataclasses import dataclass

FRAME_BYTES = 1024
"""What a frame counts at least, since the smallest one takes time as well."""


@dataclass(slots=True)
class ByteRate:
    """A bucket that holds the bytes of one second and is filled again at `bytes_per_s`."""

    bytes_per_s: float
    _missing: float = 0.0
    """Bytes that were taken out and are not filled up yet."""
    _at_s: float = 0.0

    def pause_s(self, size: int, now_s: float) -> float:
        """Take a frame's bytes out, and return for how long nothing more should be read."""
        self._missing = max(0.0, self._missing - (now_s - self._at_s) * self.bytes_per_s) + max(size, FRAME_BYTES)
        self._at_s = now_s
        return max(0.0, self._missing / self.bytes_per_s - 1)
