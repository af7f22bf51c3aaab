"""Methods over shaped links, as in results/reference/live: python scripts/live_reference.py [OUT]."""

import subprocess
import sys
from pathlib import Path

SKIT = [sys.executable, "-c", "from specbench_kit.cli.main import main; main()"]
METHODS = ("fixed-k", "svip", "adaedl", "opt-tree", "specedge", "ssd", "prompt-lookup", "suffix")
RTT_S = (0.0, 0.02, 0.08)
ASKED = ("--dataset", "gsm8k", "--limit", "6", "--max-new-tokens", "48")


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "results/reference/live")
    server = subprocess.Popen([*SKIT, "serve", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        address = next(line.split()[-1] for line in server.stderr if line.startswith("listening on"))
        for rtt_s in RTT_S:
            runs = Path("build/reference/live", f"{1000 * rtt_s:g}ms")
            named = [word for method in METHODS for word in ("--method", method)]
            link = ("--link", f"rtt_s={rtt_s:g}") if rtt_s else ()
            bench = ["bench", "--server", address, *named, *link, *ASKED, "--out", str(runs)]
            subprocess.run([*SKIT, *bench], check=True)
            report = ["report", str(runs), "--format", "md,html,csv,svg", "--out", str(out / runs.name)]
            subprocess.run([*SKIT, *report], check=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
