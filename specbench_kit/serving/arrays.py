"""Array types of the simulator."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
