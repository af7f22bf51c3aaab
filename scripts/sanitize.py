"""Run the tests of compiled code under the compiler's address, undefined-behaviour and thread sanitizers.

Usage: python scripts/sanitize.py [address|thread ...]. Each sanitizer gets a copy of the package in build/sanitize with
the extensions compiled for it, so that the installed builds stay as they are.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = Path("specbench_kit/models/executors/csrc")
EXTENSIONS = {
    "portable": SOURCES / "native.cpp",
    "core": Path("specbench_kit/serving/csrc/core.cpp"),
}
"""The source of each extension: the native executor, and the event loop of simulations."""
TESTS = ("models/test_native.py", "models/test_native_blocks.py", "serving/test_native_core.py")
FLAGS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}
RUNTIME = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    # Python itself frees little at its end; what the extension leaks shows in the size of long runs instead.
    "address": {"ASAN_OPTIONS": "detect_leaks=0"},
    # Only reports that name the extension count: torch's own threads are not built for the sanitizer.
    "thread": {"TSAN_OPTIONS": "halt_on_error=0:exitcode=0:report_signal_unsafe=0"},
}
COMPILER = os.environ.get("CXX", "g++")
COMMON = ["-std=c++20", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer", "-Wno-psabi"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]


def compile_extensions(folder: Path, name: str) -> None:
    """Compile the extensions for one sanitizer into a copy of the package; a warning is an error."""
    include = f"-I{sysconfig.get_paths()['include']}"
    for extension, source in EXTENSIONS.items():
        target = folder / source.parent / f"{extension}{sysconfig.get_config_var('EXT_SUFFIX')}"
        shared = [
            "-shared",
            "-fPIC",
            "-ffp-contract=off",
            include,
            str(ROOT / source),
            "-o",
            str(target),
        ]
        subprocess.run([COMPILER, *COMMON, *WARNINGS, *FLAGS[name], *shared], check=True)


def run_pool_test(folder: Path, name: str) -> bool:
    """Compile and run the test of the thread pool, and return whether it passed without a report."""
    binary = folder / "pool_test"
    source = str(ROOT / "tests/models/csrc/pool_test.cpp")
    include = f"-I{ROOT / SOURCES}"
    subprocess.run(
        [COMPILER, *COMMON, *WARNINGS, *FLAGS[name], include, source, "-o", str(binary)], check=True
    )
    return subprocess.run([str(binary)], check=False).returncode == 0


def run_tests(folder: Path, name: str) -> bool:
    """Run the tests on the sanitized builds, and return whether they passed without a report about these."""
    # C++'s own library goes along: a sanitizer that starts without it ends the process at the first exception.
    preloaded = [_find_library(RUNTIME[name]), _find_library("libstdc++.so")]
    paths = os.pathsep.join(map(str, (folder, ROOT / "tests", ROOT / "tests/serving", ROOT)))
    environment = {
        **os.environ,
        **OPTIONS[name],
        "LD_PRELOAD": " ".join(preloaded),
        "PYTHONPATH": paths,
    }
    tests = [str(ROOT / "tests" / file) for file in TESTS]
    # A sanitized build takes many times as long.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--timeout=1200",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    print(result.stdout[-2000:])
    warnings = [part for part in result.stderr.split("==================") if "WARNING" in part]
    reports = [
        part for part in warnings if any(f"{extension}.cpython" in part for extension in EXTENSIONS)
    ]
    if reports or result.returncode:
        print(*reports[:3], result.stderr[-3000:], sep="\n")
    return not reports and result.returncode == 0


def _find_library(name: str) -> str:
    """Return the path of a library of the compiler."""
    command = [COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run every sanitizer that was named, or all of them; return 1 if one of them has something to report."""
    clean = True
    for name in sys.argv[1:] or list(FLAGS):
        folder = ROOT / "build" / "sanitize" / name
        shutil.rmtree(folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / "specbench_kit", folder / "specbench_kit", ignore=ignored)
        compile_extensions(folder, name)
        passed = run_pool_test(folder, name) and run_tests(folder, name)
        print(f"{name}: {'clean' if passed else 'FAILED'}")
        clean = clean and passed
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
