"""Make `.venv` ready: the first step of every `make` command. Costs about 50 ms when there is nothing to do.

    python3 tools/setup_env.py

Needs only Python's standard library, and parses on old Pythons so that it can say what is wrong with them.
Exit codes: 0 ready; 1 the installation failed (its log is named); 2 this machine lacks something (named in one line).

Environment variables:
    PYTHON        the interpreter to build on (default: python3, else the first suitable python3.N on PATH)
    CXX           the C++ compiler that builds the simulated device (default: g++, else c++)
    TORCH_INDEX   address of one more package index for torch, such as PyTorch's CPU wheel index

A folder wheels/ beside this one, as `make wheelhouse` packs it, holds all packages: then pip asks no index.

Where torch, torch_npu and a CANN that loads are already there (a vendor image, say), `.venv` shares the system's
packages and neither torch nor torch_npu is installed: they were built for each other and for that CANN.
"""

import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BUILD = ROOT / "build"
WHEELS = ROOT / "wheels"
OLDEST, NEWEST = (3, 10), (3, 14)  # what torch_npu's wheels exist for
COMPILERS = ("g++", "c++")
CANN_SCRIPTS = ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/cann/set_env.sh")


def stop(message, code=2):
    print("setup: " + message, file=sys.stderr)
    sys.exit(code)


def version_text(version):
    return ".".join(str(part) for part in version[:2])


def check_python():
    """Continue under a Python that fits, or say in one line what to install."""
    if sys.platform != "linux":
        stop("torch_npu exists for Linux only: run this in a Linux container or virtual machine (WSL 2 on Windows)")
    here = sys.version_info[:2]
    if OLDEST <= here <= NEWEST:
        if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
            stop(f"Python's venv module is missing: install the package python{version_text(here)}-venv")
        return
    if not os.environ.get("PYTHON"):
        for minor in (11, 12, 13, 10, 14):
            other = shutil.which(f"python3.{minor}")
            # A shim on PATH may exist for a version that is not installed, so ask it.
            if other and subprocess.call([other, "-c", ""], stderr=subprocess.DEVNULL) == 0:
                os.execve(other, [other, os.path.abspath(__file__)], dict(os.environ, PYTHON=other))
    stop(
        f"Python {version_text(OLDEST)} to {version_text(NEWEST)} is needed, {sys.executable} is {version_text(here)}: "
        "install the packages python3.11 and python3.11-venv, or name another with PYTHON=..."
    )


def check_compiler():
    named = os.environ.get("CXX", "").split()
    if named:
        if not shutil.which(named[0]):
            stop(f"the C++ compiler named by CXX was not found: {named[0]}")
    elif not any(shutil.which(name) for name in COMPILERS):
        stop("a C++ compiler is missing: install the package g++ (it builds the simulated device)")


def own_torch():
    """Versions of a torch and torch_npu that this Python already has and whose CANN loads; None without all three."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = {name: version(name) for name in ("torch", "torch_npu")}
    except PackageNotFoundError:
        return None
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return None
    return found


def offline():
    """Settings for a pip that takes everything from the folder wheels/, where tools/wheelhouse.py has put one."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS)} if WHEELS.is_dir() else {}


class Pip:
    """Runs pip with one line of progress, and keeps its whole output in a log."""

    def __init__(self, log):
        self.python = str(VENV / "bin" / "python")
        self.log = log

    def install(self, what, arguments):
        command = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
        started = time.monotonic()
        terminal = sys.stdout.isatty()
        begin = "\r\033[K" if terminal else ""
        end = "" if terminal else "\n"
        print(f"setup: {what} ...", end=end, flush=True)
        with open(self.log, "a") as log:
            print("$", *command, file=log, flush=True)
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=str(ROOT),
                env=dict(os.environ, PYTHONUNBUFFERED="1", **offline()),
            )
            code = None
            while code is None:
                try:
                    code = process.wait(1 if terminal else 20)
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - started
                    print(f"{begin}setup: {what} ... {seconds:.0f} s  {self.step()}", end=end, flush=True)
                except BaseException:
                    process.terminate()
                    raise
        outcome = "failed" if code else "done"
        print(f"{begin}setup: {what}: {outcome}, {time.monotonic() - started:.0f} s")
        if code:
            errors = re.findall(r"^ERROR: (.+)$", Path(self.log).read_text(), re.M)
            reason = errors[-1] if errors else f"exit code {code}"
            stop(f"pip: {reason} (whole log: {os.path.relpath(self.log)})", 1)

    def step(self):
        """What pip does now, in a word or two."""
        found = re.findall(r"^ *(Collecting|Downloading|Installing) (\S+)", Path(self.log).read_text(), re.M)
        if not found or found[-1][0] == "Installing":
            return "unpacking" if found else ""
        return found[-1][1].rsplit("/", 1)[-1][:40]

    def brings_cuda(self, requirement):
        """True if pip would take a torch that depends on CUDA packages. A guess of False costs only a note."""
        command = [self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--dry-run"]
        result = subprocess.run(
            [*command, "--report", "-", requirement],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            installs = json.loads(result.stdout)["install"]
            return any("nvidia" in need for item in installs for need in item["metadata"].get("requires_dist", []))
        except (ValueError, KeyError):
            return False


def make_venv(base):
    """A new `.venv` when there is none or its base differs; an interrupted one with the same base is used again."""
    record = VENV / ".base"
    same = record.is_file() and record.read_text() == json.dumps(base) and (VENV / "bin" / "python").exists()
    if same:
        return
    if VENV.exists():
        if not (VENV / "pyvenv.cfg").is_file():
            stop(f"{VENV.name} exists and is not a virtual environment: move it away")
        print("setup: Python, folder or CANN changed, so .venv is made anew")
        shutil.rmtree(str(VENV))
    share = ["--system-site-packages"] if base["own_torch"] else []
    made = subprocess.run(
        [sys.executable, "-m", "venv", *share, str(VENV)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if made.returncode:
        shutil.rmtree(str(VENV), ignore_errors=True)
        lines = made.stdout.strip().splitlines() or ["no output"]
        stop(f"{sys.executable} -m venv failed: {lines[-1]}", 1)
    if base["own_torch"] and sys.prefix != sys.base_prefix:
        # Made from inside a virtual environment, the new one would share the system's packages but not that one's.
        shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        packages = next(VENV.glob("lib/python3*/site-packages"))
        (packages / "own_torch.pth").write_text("\n".join(sorted(shared)) + "\n")
    record.write_text(json.dumps(base))


def quiet_lab():
    """No question about news when JupyterLab starts. Your own settings go before this default."""
    settings = VENV / "etc" / "jupyter" / "labconfig" / "default_setting_overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}))


def main():
    check_python()
    own = own_torch()
    if not own:
        check_compiler()
    base = {
        "python": os.path.realpath(sys.executable),
        "version": sys.version.split()[0],
        "folder": str(ROOT),
        "own_torch": own,
    }
    project = (ROOT / "pyproject.toml").read_bytes()
    key = hashlib.sha256(project + Path(__file__).read_bytes() + json.dumps(base).encode()).hexdigest()
    stamp = VENV / ".stamp"
    if stamp.is_file() and stamp.read_text() == key:
        return

    record = VENV / ".base"
    if record.is_file() and json.loads(record.read_text()).get("own_torch") and not own:
        stop("this .venv uses the machine's own torch_npu, and CANN does not load now: source its set_env.sh first")

    BUILD.mkdir(exist_ok=True)
    with open(BUILD / "setup.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: another make is setting .venv up; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.is_file() and stamp.read_text() == key:
            return

        make_venv(base)
        log = BUILD / "setup.log"
        log.write_text("")
        pip = Pip(str(log))
        if own:
            pair = ", ".join(f"{name} {version}" for name, version in own.items())
            print(f"setup: {pair} and CANN are here already and stay as they are")
            pins = VENV / "constraints.txt"
            pins.write_text("".join(f"{name}=={version}\n" for name, version in own.items()))
            pip.install("installing Jupyter and the course", ["-c", str(pins), "-e", ".[test,real]"])
            # The system's kernel specification would start the system's Python, which does not know this course.
            kernel = [pip.python, "-m", "ipykernel", "install", "--sys-prefix"]
            if subprocess.call(kernel, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                stop(f"registering the Jupyter kernel failed: {' '.join(kernel)}", 1)
        else:
            if any(Path(name).exists() for name in CANN_SCRIPTS):
                print(
                    "setup: note: CANN is on this machine but not in this shell, so the device will be simulated. "
                    "For the real one: source CANN's set_env.sh, then make again"
                )
            index = os.environ.get("TORCH_INDEX")
            torch = re.search(r'"(torch==[^"]+)"', project.decode())
            if not index and not offline() and pip.brings_cuda(torch.group(1)):
                print(
                    "setup: note: PyTorch's default build for this machine includes CUDA (several GB; it works). "
                    "For the small CPU build: make ... TORCH_INDEX=<address of PyTorch's CPU wheel index>"
                )
            extra = ["--extra-index-url", index] if index else []
            pip.install("installing torch, torch_npu, Jupyter and the course", [*extra, "-e", ".[npu,test,real]"])
        quiet_lab()
        stamp.write_text(key)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; the next run goes on from here", 130)
