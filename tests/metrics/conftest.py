"""The builders of run directories that tests of reports use."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "reports"))
