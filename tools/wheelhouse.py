"""Pack the course with everything that pip would fetch, for a room without a network.

    python tools/wheelhouse.py                     into build/npugraph-course-VERSION-PYTHON-PROCESSOR.tar
    python tools/wheelhouse.py workshop-2027-03    the commit with that tag; the archive's name has it for VERSION

Beside the archive comes its checksum, for `sha256sum -c`. In the room, unpack it and run `make run` as anywhere:
tools/setup_env.py takes its packages from the folder wheels/ and asks no index. The archive is for machines like this
one: the same processor and the same Python, which its name says.
TORCH_INDEX: address of one more package index for torch, such as PyTorch's CPU wheel index.
Exit codes: 0 packed; 1 pip failed (its last line is shown); 2 this is not a clone, or has no such tag.
"""

import argparse
import importlib.metadata
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "npugraph-course"


def stop(message: str, code: int):
    print(f"wheelhouse: {message}", file=sys.stderr)
    sys.exit(code)


def unpack_commit(folder: Path, tag: str | None) -> Path:
    """The committed files of a tag or of the current commit, without what was made beside them."""
    command = ["git", "archive", "--format=tar", f"--prefix={NAME}/", f"refs/tags/{tag}" if tag else "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    if done.returncode:
        stop(f"no tag {tag} in this clone" if tag else f"git archive failed: {done.stderr.decode().strip()}", 2)
    changed = ["git", "status", "--porcelain"]
    if not tag and subprocess.run(changed, cwd=ROOT, capture_output=True).stdout.strip():
        print("wheelhouse: note: changes that are not committed are left out")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as committed:
        committed.extractall(folder, filter="data")
    return folder / NAME


def fetch(course: Path, wheels: Path) -> None:
    """Wheels of all that the course needs, without the course itself."""
    print("wheelhouse: collecting packages, a few minutes ...", flush=True)
    what = [f"{course}[npu,test,real]", "setuptools>=77"]  # which builds the course
    index = os.environ.get("TORCH_INDEX")
    extra = ["--extra-index-url", index] if index else []
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    command = [*pip, *extra, "-w", str(wheels), *what]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        stop(f"pip failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", 1)
    for own in wheels.glob(f"{NAME.replace('-', '_')}-*.whl"):
        own.unlink()
    for made in ("build", f"src/{NAME.replace('-', '_')}.egg-info"):
        shutil.rmtree(course / made, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tag", nargs="?", help="the tag of a workshop (default: the current commit)")
    tag = parser.parse_args(arguments).tag
    # With the third number of Python: some packages ask for one.
    where = f"python{platform.python_version()}-{platform.machine()}"
    target = ROOT / "build" / f"{NAME}-{(tag or importlib.metadata.version(NAME)).replace('/', '-')}-{where}.tar"
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        course = unpack_commit(Path(folder), tag)
        fetch(course, course / "wheels")
        count = len(list((course / "wheels").iterdir()))
        partial = target.with_suffix(".partial")
        with tarfile.open(partial, "w") as archive:  # wheels are compressed already
            archive.add(course, NAME)
        partial.replace(target)
    with target.with_suffix(".tar.sha256").open("w") as checksum:
        subprocess.run(["sha256sum", target.name], cwd=target.parent, stdout=checksum, check=True)
    print(f"wheelhouse: {target.relative_to(ROOT)}: {count} packages, {target.stat().st_size / 1e6:.0f} MB")
    print(f"wheelhouse: in the room: tar xf {target.name} && cd {NAME} && make run")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        stop("interrupted", 130)
