"""Counter-based random numbers, keyed by device and purpose.

A sequential generator ties every number to those drawn before it: one request more on one device
would change the lengths, jitter and acceptance of all others. Here a number is a pure function of
(key, device, purpose, count), so that rounds can be set up in blocks and in any order, two
schedulers see the same workload, and a longer simulation begins with exactly the shorter one.
"""

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from specbench_kit.serving.arrays import Floats, Integers


class Purpose(IntEnum):
    """The quantity that a random number decides; the values select the stream and must not
    change.
    """

    REQUEST = 0
    RESPONSE = 1
    ROUND = 2
    UP = 3
    DOWN = 4
    PROMPT = 5
    OUTPUT = 6
    LOST_UP = 7
    LOST_DOWN = 8
    CONFIDENCE = 9


class CounterRng:
    """Uniform random numbers in [0, 1) by device, purpose and count, under one key.

    Uses the mixing function of SplitMix64 (Steele, Lea and Flood 2014) with one stream per purpose
    and device.
    """

    def __init__(self, key: str, devices: int) -> None:
        first = np.frombuffer(hashlib.sha256(key.encode()).digest()[:8], np.uint64)[0]
        streams = np.arange(devices * len(Purpose), dtype=np.uint64).reshape(len(Purpose), devices)
        self.streams = _mix(first + streams * _INCREMENT)

    def uniform(self, purpose: Purpose, devices: Integers, counts: Integers) -> Floats:
        """Return the `counts[i]`-th number of each device's stream for `purpose`: shape
        [devices].
        """
        mixed = _mix(self.streams[purpose, devices] + counts.astype(np.uint64) * _INCREMENT)
        # The upper 53 bits fill the mantissa of a double, the others are dropped.
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio: consecutive counts land far apart."""


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
