"""The gallery of results: one file for each run of somebody's machine, in ``results/`` at the top of the repository.

A file is ``{"machine": {...}, "records": [...]}``: what the records were measured on, and the records of a results file
(``bench``). Nothing in it says whose machine it is.
"""

import contextlib
import itertools
import json
import os
import platform
import re
import socket
import tempfile
from pathlib import Path
from typing import NamedTuple

from . import bench, device
from .bench import ResultsError

ROOT = Path(__file__).resolve().parents[2]  # of a clone
_TEXT, _MAYBE = (str,), (str, type(None))
_MACHINE: dict[str, tuple] = {  # key: allowed types
    "device": _TEXT,  # "ascend" or "simulated"
    "npu": _MAYBE,  # the card's name; None if it is simulated
    "cpu": _TEXT,
    "cores": (int,),  # that the process may use
    "os": _TEXT,
    "python": _TEXT,
    "torch": _TEXT,
    "torch_npu": _TEXT,
    "cann": _TEXT,
    "date": _TEXT,  # day of the newest record
    "course": _TEXT,  # version
    "name": _MAYBE,  # what its owner calls the kind of machine
}
# A path, an address of a person, a drive: none is of use to a reader.
_PRIVATE = re.compile(r"(?:^|[\s'\":=(,])(?:~?/[\w.]|~\w|\.\.?/)|\w@\w|\b[A-Za-z]:\\")


class Submission(NamedTuple):
    file: str  # name of the file, without its folder
    machine: dict
    records: list[dict]

    @property
    def label(self) -> str:
        """The machine in a few words."""
        m = self.machine
        kind = m["name"] or ", ".join(filter(None, (m["npu"], m["cpu"])))
        return f"{kind}, {m['cores']} core{'s' if m['cores'] > 1 else ''}, {m['date']}"


def load_submissions(folder: str | os.PathLike) -> list[Submission]:
    """Read and check every file of a gallery, in the order of their names; none if there is no such folder.

    Raises ResultsError, which names the first wrong file and what is wrong in it.
    """
    return [_read(path) for path in sorted(Path(folder).glob("*.json"))]


def submit(results: Path, name: str | None = None, folder: Path | None = None) -> tuple[Path, bool]:
    """Write the records of a results file and what machine this is into the gallery: its file, and if it is new.

    name: what to call this kind of machine. folder: the gallery, by default the clone's.
    Raises ResultsError where the records are wrong, or were not measured here.
    """
    folder = folder or ROOT / "results"
    if not (folder.parent / "notebooks").is_dir():
        raise ResultsError(f"{folder.parent} is not a clone of the course, so it has no gallery")
    if not results.exists():
        raise ResultsError(f"{results} is not there: notebook 3 makes it, or `make run`")
    records = bench.load_results(results)
    if not records:
        raise ResultsError(f"{results}: no records")
    machine = this_machine(max(r["date"] for r in records)[:10], name)
    made = {"machine": machine, "records": records}
    _check(made, str(results))
    try:
        text = json.dumps(made, indent=1, allow_nan=False) + "\n"
    except ValueError as error:
        raise ResultsError(f"{results}: {error}") from None
    for there in load_submissions(folder):
        if (there.machine, there.records) == (machine, records):
            return folder / there.file, False
    folder.mkdir(exist_ok=True)
    parts = machine["device"], machine["npu"] or machine["cpu"], machine["date"]
    stem = "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, suffix=".tmp") as whole:
        whole.write(text)
        whole.flush()
        os.chmod(whole.name, 0o644)
        for number in itertools.count(1):
            path = folder / f"{stem}{'' if number == 1 else f'-{number}'}.json"
            with contextlib.suppress(FileExistsError):
                os.link(whole.name, path)  # at once, and never on top of another one
                return path, True


def this_machine(date: str, name: str | None = None) -> dict:
    """What a submission says of this machine. Raises ResultsError for a name that says whose it is."""
    here = device.activate(threads=None, verbose=False)
    whose = [word for word in (socket.gethostname(), os.environ.get("USER")) if word]
    if name and (_PRIVATE.search(name) or re.search(rf"\b({'|'.join(map(re.escape, whose))})\b", name, re.I)):
        raise ResultsError(f"the name {name!r} says whose machine this is: name its kind, or leave it away")
    npu = None
    if here.kind == "ascend":
        import torch

        npu = torch.npu.get_device_name()
    return {
        "device": here.kind,
        "npu": npu,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "os": _system(),
        "python": here.python,
        "torch": here.torch,
        "torch_npu": here.torch_npu,
        "cann": here.cann,
        "date": date,
        "course": re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M).group(1),
        "name": name or None,
    }


def _cpu(info: Path = Path("/proc/cpuinfo")) -> str:
    """The model of the CPU. Arm's Linux gives numbers in its place, that of the maker and that of the part."""
    text = info.read_text() if info.exists() else ""
    found = dict(re.findall(r"^(model name|CPU implementer|CPU part)\s*: *(.+?) *$", text, re.M))
    if "model name" in found:
        return found["model name"]
    return " ".join([platform.machine(), *(f"{key} {value}" for key, value in found.items())])


def _system() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.machine()}"
    except (OSError, KeyError):  # not platform.platform(): the name of a kernel may say who built it
        return f"{platform.system()}, {platform.machine()}"


def _read(path: Path) -> Submission:
    found = bench.read_json(path)
    _check(found, str(path))
    return Submission(path.name, found["machine"], found["records"])


def _check(found, where: str) -> None:
    if not isinstance(found, dict) or set(found) != {"machine", "records"}:
        raise ResultsError(f"{where}: not a submission, which is an object with machine and records")
    if problem := _machine_problem(found["machine"]):
        raise ResultsError(f"{where}: machine: {problem}")
    machine, records = found["machine"], bench.checked(found["records"], where)
    for i, r in enumerate(records):
        for key in ("device", "torch", "torch_npu", "cann"):
            if r[key] != machine[key]:
                raise ResultsError(
                    f"{where}: record {i} was measured with {key} {r[key]}, and the machine's is {machine[key]}: "
                    "a submission has the records of one machine; measure again into a new file"
                )
    for text in _texts(found):
        if _PRIVATE.search(text):
            raise ResultsError(f"{where}: {text!r} looks like a path or an address, which a submission does not hold")


def _machine_problem(machine) -> str | None:
    if not isinstance(machine, dict):
        return f"expected an object, got {type(machine).__name__}"
    for key in [*_MACHINE, *machine]:
        if key not in machine or key not in _MACHINE:
            return f"{key} is missing" if key in _MACHINE else f"unknown key {key}"
        if type(machine[key]) not in _MACHINE[key]:
            return f"{key} is {machine[key]!r}, expected {' or '.join(kind.__name__ for kind in _MACHINE[key])}"
    for key, text in machine.items():
        if isinstance(text, str) and not (text.isprintable() and len(text) <= 80 and not set(text) & set("$\\")):
            return f"{key} is {text!r:.100}, expected at most 80 plain characters"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", machine["date"]):
        return f"date is {machine['date']!r}, expected YYYY-MM-DD"
    if machine["device"] not in device.SOURCE:
        return f"device is {machine['device']!r}, expected {' or '.join(device.SOURCE)}"
    if (machine["npu"] is None) == (machine["device"] == "ascend"):
        return f"npu is {machine['npu']!r}, and the device is {machine['device']}"
    return None


def _texts(found):
    """Every text in it, keys too."""
    if isinstance(found, dict):
        found = [*found, *found.values()]
    if isinstance(found, list):
        for item in found:
            yield from _texts(item)
    elif isinstance(found, str):
        yield found
