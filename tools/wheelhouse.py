"""Pack the course with everything that pip would fetch, for a room without a network.

    python tools/wheelhouse.py        into build/npugraph-course-VERSION.tar

There, unpack it and run `make run` as anywhere: tools/setup_env.py takes its packages from the folder wheels/ and asks no
index. The archive is for machines like this one: the same processor, and the same Python (its name says which).
Exit codes: 0 packed; 1 pip failed (its last line is shown); 2 this is not a clone, or not set up.
"""

import importlib.metadata
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "npugraph-course"
WHAT = [f"{ROOT}[npu,test,real]", "pip", "setuptools>=77"]  # setuptools builds the course itself


def stop(message: str, code: int):
    print(f"wheelhouse: {message}", file=sys.stderr)
    sys.exit(code)


def sources() -> bytes:
    """The committed files, as a tar."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", f"--prefix={NAME}/", "HEAD"], cwd=ROOT, capture_output=True
    )
    if done.returncode:
        stop(f"git archive failed: {done.stderr.decode().strip()}", 2)
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout.strip():
        print("wheelhouse: note: changes that are not committed are left out")
    return done.stdout


def fetch(wheels: Path) -> list[Path]:
    """Wheels of all that the course needs, without the course itself."""
    print("wheelhouse: collecting packages, a few minutes ...", flush=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "-w", str(wheels), *WHAT]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        stop(f"pip failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", 1)
    for own in wheels.glob(f"{NAME.replace('-', '_')}-*.whl"):
        own.unlink()
    return sorted(wheels.glob("*.whl"))


def main() -> int:
    version = importlib.metadata.version(NAME)
    python = "".join(platform.python_version_tuple()[:2])
    target = ROOT / "build" / f"{NAME}-{version}-cp{python}-{platform.machine()}.tar"
    committed = sources()
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheels = fetch(Path(folder))
        partial = target.with_suffix(".partial")
        with tarfile.open(partial, "w") as archive:  # wheels are compressed already
            with tarfile.open(fileobj=io.BytesIO(committed)) as course:
                for member in course:
                    archive.addfile(member, course.extractfile(member) if member.isfile() else None)
            for wheel in wheels:
                archive.add(wheel, f"{NAME}/wheels/{wheel.name}")
        partial.replace(target)
    size = target.stat().st_size / 1e6
    print(f"wheelhouse: {target.relative_to(ROOT)}: {len(wheels)} packages, {size:.0f} MB")
    print(f"wheelhouse: in the room: tar xf {target.name} && cd {NAME} && make run")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        stop("interrupted", 130)
