"""Runs the command line as `python -m specbench_kit`, where the script `skit` is not on the
path.
"""

from specbench_kit.cli.main import main

if __name__ == "__main__":
    main()
