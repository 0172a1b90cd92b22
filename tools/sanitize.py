"""Run the device's tests under AddressSanitizer with UndefinedBehaviorSanitizer, then under ThreadSanitizer.

    python tools/sanitize.py [--only address|thread] [arguments for pytest]

Needs g++ with libasan and libtsan, which it brings. The device alone is instrumented: Python, torch and
torch_npu are as they are. Reports of all processes, those that tests start included, are kept in build/sanitize.
Exit code 0: every test passed and nothing was reported.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "sanitize"
DEVICE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_device_*.py"))
# The operators share what runs them, and run one at a time: their threads are those of the device's own tests.
TESTS = {"address": [*DEVICE, "tests/test_ops.py"], "thread": DEVICE}
RUNTIME = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    # Python and torch leave 65,000 allocations at their end: tests/test_device_stress.py looks for leaks instead.
    "ASAN_OPTIONS": "detect_leaks=0:handle_sigill=1",
    # torch and torch_npu order what they do by atomics that ThreadSanitizer does not see. What they allocate, copy
    # and free is left out, so a race of theirs with the device's memory goes unseen; that of two places in the
    # device does not.
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:history_size=7:"
    f"suppressions={ROOT / 'tests' / 'sanitize.supp'}",
}


def library(name: str) -> str:
    """Path of a library of the compiler."""
    command = [*shlex.split(os.environ.get("CXX") or "g++"), f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"sanitize: {command[0]} has no {name}")
    return path


def without_random_addresses() -> list[str]:
    """A command to put before another. ThreadSanitizer can't place its shadow where addresses are very random."""
    command = ["setarch", "-R"]
    works = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if works else []


def run(sanitizer: str, arguments: list[str]) -> str:
    """Run the tests under one sanitizer; give back what went wrong, or nothing."""
    environment = os.environ | {"ASCEND_SIM_SANITIZE": sanitizer, "PYTHONPATH": str(ROOT / "src")}
    build = "from ascend_sim.build import library; library()"
    if subprocess.run([sys.executable, "-c", build], env=environment, cwd=ROOT).returncode:
        return "the device does not compile"
    for name, options in OPTIONS.items():
        kind = name.split("_")[0].lower()
        environment[name] = f"{options}:log_path={REPORTS / kind}:{os.environ.get(name, '')}"
    # The C++ library too: a sanitizer looks its functions up before torch brings them.
    environment["LD_PRELOAD"] = f"{library(RUNTIME[sanitizer])} {library('libstdc++.so.6')}"
    tests = [] if any(a.startswith("tests/") for a in arguments) else TESTS[sanitizer]
    command = [*without_random_addresses(), sys.executable, "-m", "pytest", "-q", *tests, *arguments]
    before = set(REPORTS.iterdir())
    code = subprocess.run(command, env=environment, cwd=ROOT).returncode
    reports = sorted(set(REPORTS.iterdir()) - before)
    for report in reports:
        print(f"\n{report}:\n{report.read_text(errors='replace')[:4000]}")
    if reports:
        return f"{len(reports)} processes with reports in {REPORTS}"
    return f"pytest ended with {code}" if code else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TESTS, help="one of the sanitizers")
    options, arguments = parser.parse_known_args()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    started = time.monotonic()
    problems = []
    for sanitizer in [options.only] if options.only else TESTS:
        print(f"== {sanitizer}", flush=True)
        if problem := run(sanitizer, arguments):
            problems.append(f"{sanitizer}: {problem}")
    minutes = f"{(time.monotonic() - started) / 60:.1f} minutes"
    print(f"sanitize: {'; '.join(problems) or 'clean'} ({minutes})")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
