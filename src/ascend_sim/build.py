"""Compile the device once, keep it in a cache, and say what is missing in one line."""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
# The pairs whose C interface this device implements. Others differ in what they look up at load.
KNOWN = {("2.13.0", "2.13.0")}
# torch_npu is linked to these names, or opens them by name while it runs. All are doors to one library.
DOORS = (
    "ascendcl", "acl_op_compiler", "ge_runner", "graph", "hccl", "acl_tdt_channel",
    "opapi", "nnopbase", "runtime", "ascend_ml", "tdtclient",
)  # fmt: skip
LIBRARY = "libascend_sim.so"
# ASCEND_SIM_SANITIZE, for `make sanitize`: a build of its own, to be loaded with the sanitizer's runtime before it.
SANITIZERS = {
    # Undefined behaviour is a trap, which AddressSanitizer reports. vptr: torch hides its type information. enum: who
    # calls the C interface may pass any number, and is answered.
    "address": ["-fsanitize=address,undefined", "-fsanitize-undefined-trap-on-error", "-fno-sanitize=vptr,enum"],
    "thread": ["-fsanitize=thread"],
}
# Builds that stay in the cache: other checkouts and versions may use it too.
KEPT = 4


class LoadError(RuntimeError):
    """The simulated device can't be loaded. The text is one line that says why and what to do."""


def versions() -> tuple[str, str]:
    """(torch, torch_npu) as installed, without importing either. Raises LoadError for a pair not known to work."""
    found = []
    for name in ("torch", "torch_npu"):
        try:
            found.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            raise LoadError(f"{name} is not installed: pip install torch==2.13.0 torch_npu==2.13.0") from None
    torch, torch_npu = found
    if (torch.split("+")[0], torch_npu) not in KNOWN:
        raise LoadError(
            f"torch {torch} with torch_npu {torch_npu} is not a pair that ascend_sim knows; "
            "it simulates the device for torch 2.13.0 with torch_npu 2.13.0"
        )
    return torch, torch_npu


def cache_folder() -> Path:
    """Where compiled devices are kept: ASCEND_SIM_CACHE, else ascend_sim in the user's cache folder."""
    if chosen := os.environ.get("ASCEND_SIM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ascend_sim"


def library() -> Path:
    """Path of the folder with the compiled device, compiling it first if need be. Safe in several processes."""
    build = Build()
    folder = build.folder
    if _whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = open(folder.parent / "lock", "w")  # noqa: SIM115  (held until the build is over)
    except OSError as e:
        raise LoadError(
            f"can't write the compiled device to {folder.parent} ({e.strerror}): "
            "set ASCEND_SIM_CACHE to a folder that can be written"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be compiling: wait for theirs
        if not _whole(folder):
            build.run()
    return folder


def _sizes(folder: Path) -> str:
    return "".join(f"{path.name} {path.stat().st_size}\n" for path in sorted(folder.glob("*.so")))


def _whole(folder: Path) -> bool:
    """Is the build there, and each file of it as long as when it was made? A truncated library ends the process."""
    try:
        return (folder / "done").read_text() == _sizes(folder)
    except OSError:
        return False


class Build:
    """One build: what goes into it, and the folder that its hash names."""

    def __init__(self) -> None:
        torch, torch_npu = versions()
        sanitizer = _sanitizer()
        self.flags = ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZERS[sanitizer]] if sanitizer else ["-O2"]
        files = sorted(p for p in SOURCES.rglob("*") if p.suffix in {".cpp", ".h"})
        common = hashlib.sha256(f"{torch} {torch_npu} {sys.implementation.cache_tag} {self.flags}".encode())
        for path in [Path(__file__), *(p for p in files if p.suffix == ".h")]:
            common.update(path.read_bytes())
        whole = common.copy()
        self.work = cache_folder() / f"objects{sanitizer and '-'}{sanitizer}"
        self.objects = {}  # source -> its object file, named by what it depends on: a changed file compiles alone
        for source in (p for p in files if p.suffix == ".cpp"):
            key = common.copy()
            key.update(source.read_bytes())
            whole.update(key.digest())
            self.objects[source] = self.work / f"{source.stem}-{key.hexdigest()[:16]}.o"
        self.folder = cache_folder() / whole.hexdigest()[:16]

    def run(self) -> None:
        """Compile what is not compiled yet, link, and put the folder in place in one step."""
        started = time.monotonic()
        self.work.mkdir(exist_ok=True)
        self._compile()
        with tempfile.TemporaryDirectory(dir=self.folder.parent, prefix="building-") as work:
            self._link(Path(work))
            (Path(work) / "done").write_text(_sizes(Path(work)))
            shutil.rmtree(self.folder, ignore_errors=True)
            os.rename(work, self.folder)
            os.mkdir(work)  # for TemporaryDirectory to remove
        shutil.rmtree(self.work / "precompiled", ignore_errors=True)
        builds = sorted(self.folder.parent.glob("*/done"), key=lambda done: done.stat().st_mtime)
        for done in builds[:-KEPT]:
            shutil.rmtree(done.parent, ignore_errors=True)
        for stale in set(self.work.glob("*.o*")) - set(self.objects.values()):
            stale.unlink()
        for killed in self.folder.parent.glob("building-*"):
            shutil.rmtree(killed, ignore_errors=True)
        _progress(f"compiled the simulated device in {time.monotonic() - started:.0f} s\n")

    def _compile(self) -> None:
        compiler, torch, torch_npu = _compiler(), _package("torch"), _package("torch_npu")
        flags = ["-std=c++20", *self.flags, "-fPIC", "-fvisibility=hidden", f"-I{SOURCES}"]
        # -isystem: warnings in the headers of others are theirs
        flags += ["-isystem", torch / "include", "-isystem", torch / "include/torch/csrc/api/include"]
        flags += ["-isystem", torch_npu / "include/third_party/acl/inc"]

        def compile_one(source: Path, obj: Path) -> None:
            _run([*compiler, *flags, "-c", source, "-o", f"{obj}.part"])
            os.rename(f"{obj}.part", obj)

        todo = [(s, o) for s, o in self.objects.items() if not o.exists()]
        todo.sort(key=lambda pair: -pair[0].stat().st_size)  # the longest first
        if len([s for s, _ in todo if s.parent.name == "ops"]) > 2:
            # Most of the time goes into PyTorch's headers: read them once for all operators. g++ finds the
            # precompiled op.h in the first folder on its path; another compiler passes over it.
            _progress("compiling the simulated device, once for this machine: headers")
            precompiled = self.work / "precompiled"
            precompiled.mkdir(exist_ok=True)
            _run([*compiler, *flags, "-x", "c++-header", SOURCES / "op.h", "-o", precompiled / "op.h.gch"])
            flags.insert(0, f"-I{precompiled}")
        # As many as there are cores to use, but a compiler takes a GB.
        with ThreadPoolExecutor(max(1, min(8, len(os.sched_getaffinity(0))))) as pool:
            jobs = [pool.submit(compile_one, *pair) for pair in todo]
            for n, job in enumerate(jobs, 1):
                _progress(f"compiling the simulated device, once for this machine: {n}/{len(jobs)}")
                job.result()

    def _link(self, out: Path) -> None:
        link, torch = [*_compiler(), "-shared", *self.flags], _package("torch") / "lib"
        libraries = [f"-L{torch}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{torch}"]
        _run([*link, "-o", out / LIBRARY, *self.objects.values(), *libraries])
        for door in DOORS:
            soname = f"lib{door}.so"
            inside = ["-Wl,--no-as-needed", f"-L{out}", "-lascend_sim", "-Wl,-rpath,$ORIGIN"]
            _run([*link, f"-Wl,-soname,{soname}", "-o", out / soname, *inside])


def _compiler() -> list[str]:
    """The command of the C++ compiler: CXX, which may carry options or a wrapper such as ccache, else g++ or c++."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++" if shutil.which("g++") else "c++"]
    if not shutil.which(command[0]):
        raise LoadError(f"no C++ compiler ({command[0]}): install one (Debian and Ubuntu: apt install g++) or set CXX")
    return command


def _sanitizer() -> str:
    """The sanitizer to build for, or ""."""
    chosen = os.environ.get("ASCEND_SIM_SANITIZE", "")
    if chosen and chosen not in SANITIZERS:
        raise LoadError(f"ASCEND_SIM_SANITIZE={chosen!r}: expected {' or '.join(SANITIZERS)}")
    return chosen


def _package(name: str) -> Path:
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def _run(command: list) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
        first = first or f"{command[0]} ended with exit code {done.returncode}"
        raise LoadError(f"the C++ compiler failed on the simulated device: {first}")


def _progress(text: str) -> None:
    start = "\r" if sys.stderr.isatty() else ""
    end = "" if sys.stderr.isatty() or text.endswith("\n") else "\n"
    print(f"{start}[ascend_sim] {text}", end=end, file=sys.stderr, flush=True)
