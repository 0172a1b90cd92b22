"""Run the course's notebooks with papermill.

    python tools/run_notebooks.py                        every notebook, into build/notebooks/
    python tools/run_notebooks.py 03 05 -p quick False   two of them, with a parameter changed
    python tools/run_notebooks.py --in-place             authors: run, tidy, and replace the committed notebooks
    python tools/run_notebooks.py --solutions            the same notebooks' solutions to the exercises instead

A notebook's result appears under its own name only when the whole notebook ran; what a failed one got to is kept beside
it as NAME.failed.ipynb. Exit codes: 0 all ran; 1 a notebook failed (its reason and its output are named) or there is no
device; 2 wrong arguments.
"""

import argparse
import ast
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import nbformat
import nbtidy

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SOLUTIONS = "solutions"  # a folder within
BUILD = ROOT / "build"
PATTERN = "[0-9][0-9]_*.ipynb"
# They model a card on the paced clock, which the simulated device alone has.
PACED = ("06_pull_the_right_lever", "07_predict_before_you_measure")
CELL_TIMEOUT = 300  # seconds; a cell of the course takes well under 60

# ipykernel >= 7.3 warns about the loopback interface at each start, and a kernel that is told to stop may log an error
# of its own. Both are noise here: a cell's failure and a dead kernel reach papermill another way.
KERNEL_CONFIG = "c = get_config()  # noqa: F821\nc.IPKernelApp.log_level = 50\n"

# One line: which device, or what is wrong with it.
ACTIVATE = """
import sys
from helpers import device
try:
    print(str(device.activate(verbose=False)).splitlines()[0])
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


class NotebookFailedError(Exception):
    """One line that says which cell failed and why; `output` is where the partly executed notebook is."""

    def __init__(self, reason: str, output: Path):
        super().__init__(reason)
        self.output = output


class WrongArgumentError(Exception):
    """One line that says which argument is wrong, and what there is."""


def quiet_kernels(folder: Path) -> None:
    """Keep the logs of the kernels that this process starts quiet (folder: where IPython's own files may go)."""
    config = folder / "profile_default" / "ipython_kernel_config.py"
    config.parent.mkdir(parents=True, exist_ok=True)
    if not config.is_file() or config.read_text() != KERNEL_CONFIG:
        config.write_text(KERNEL_CONFIG)
    os.environ["IPYTHONDIR"] = str(folder)


def find(names: list[str], folder: Path) -> list[Path]:
    """The notebooks that the names mean (`03`, a stem or a path's last part), in order; all of them for no names."""
    everything = sorted(folder.glob(PATTERN))
    if not everything:
        raise WrongArgumentError(f"no notebooks in {shown(folder)}")
    chosen = []
    for name in names:
        stem = Path(name).name.removesuffix(".ipynb")
        matching = [path for path in everything if path.stem == stem or path.stem.split("_")[0] == stem]
        if not matching:
            raise WrongArgumentError(f"no notebook {name!r}; there are {', '.join(path.stem for path in everything)}")
        chosen += matching
    return sorted(set(chosen)) if names else everything


def shown(path: Path) -> str:
    """The path as a person at the current folder would type it."""
    return os.path.relpath(path)


def declared_parameters(path: Path) -> dict:
    """name -> papermill's record of the parameter ({'inferred_type_name', 'default', 'help', ...})."""
    import papermill

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return papermill.inspect_notebook(str(path))


def choose_parameters(paths: list[Path], pairs: list[list[str]]) -> dict[Path, dict]:
    """For each notebook, those of the named parameters that it has. papermill alone accepts names that none has."""
    declared = {path: declared_parameters(path) for path in paths} if pairs else {}
    known = sorted({name for parameters in declared.values() for name in parameters})
    chosen: dict[Path, dict] = {path: {} for path in paths}
    for name, text in pairs:
        if name not in known:
            raise WrongArgumentError(f"no notebook has a parameter {name!r}; there are {', '.join(known) or 'none'}")
        for path in paths:
            if name in declared[path]:
                kind = declared[path][name]["inferred_type_name"]
                chosen[path][name] = parse_value(name, text, kind)
    return chosen


def parse_value(name: str, text: str, kind: str):
    """The value of a parameter declared as `name: kind = ...`, from the command line."""
    if kind == "str":
        return text
    try:
        value = ast.literal_eval(text.capitalize() if text.lower() in ("true", "false", "none") else text)
    except (ValueError, SyntaxError):
        value = text
    numeric = kind == "float" and type(value) is int
    if kind in ("bool", "int", "float") and type(value).__name__ != kind and not numeric:
        raise WrongArgumentError(f"parameter {name} is {kind}, not {text!r}")
    return value


def execute(path: Path, output: Path, parameters: dict | None = None, cwd: Path | None = None, **options):
    """Execute one notebook into `output` and return it. All or nothing: `output` is written only after the last cell.

    cwd: the kernel's folder (default: the notebook's own). options: more arguments for papermill.execute_notebook.
    Raises NotebookFailedError.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what it would log, the exception says
    partial = output.with_suffix(".failed.ipynb")
    for old in (partial, output):
        old.unlink(missing_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)

    def failed(reason: str) -> NotebookFailedError:
        return NotebookFailedError(f"{path.stem}: {reason}", partial)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            notebook = papermill.execute_notebook(
                path,
                partial,
                parameters=parameters or {},
                cwd=cwd or path.parent,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                execution_timeout=CELL_TIMEOUT,
                **options,
            )
    except papermill.PapermillExecutionError as error:
        raise failed(describe_failure(partial, error)) from error
    except DeadKernelError as error:
        raise failed("the kernel died (killed, out of memory, or crashed)") from error
    except CellTimeoutError as error:
        raise failed(f"a cell took longer than {CELL_TIMEOUT} s") from error
    except KeyboardInterrupt:
        raise
    except Exception as error:  # an unreadable notebook, no kernel, no space: still one line
        raise failed(f"{type(error).__name__}: {first_line(error)}") from error
    if complaint := usage_error(notebook):
        raise failed(complaint)
    os.replace(partial, output)
    return notebook


def describe_failure(path: Path, error) -> str:
    """`cell 7 (capture-graph): RuntimeError: first line of its message`, for papermill's error and what it saved."""
    notebook = nbformat.read(path, as_version=4)
    if complaint := usage_error(notebook):
        return complaint
    # Found by its output, not by error.cell_index: papermill puts banner cells into a failed notebook.
    for cell in notebook.cells:
        if any(output.output_type == "error" for output in cell.get("outputs", [])):
            return f"{describe_cell(cell)}: {error.ename}: {first_line(error.evalue)}"
    return f"cell {error.cell_index}: {error.ename}: {first_line(error.evalue)}"


def usage_error(notebook) -> str | None:
    """IPython prints an unknown magic, with no error output: nbval passes it, papermill gives no reason."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr" and output.text.startswith("UsageError:"):
                return f"{describe_cell(cell)}: {first_line(output.text)}"
    return None


def describe_cell(cell) -> str:
    return f"cell {cell.get('execution_count')} ({cell.get('id')})"


def first_line(text) -> str:
    return (str(text).strip().splitlines() or [""])[0]


def put_in_place(output: Path, path: Path) -> list[str]:
    """Replace the committed notebook by the executed one, tidied. Returns what a reader of it would be bothered by."""
    text, mended, left = nbtidy.tidied(output.read_text(encoding="utf-8"))
    output.write_text(text, encoding="utf-8")
    os.replace(output, path)
    return [note for note in mended if "stderr" in note or "progress bar" in note] + left


def prepare_device() -> bool:
    """Build the simulated device before the first notebook, where its progress can be seen. False if it is a real one.

    Raises SystemExit.
    """
    result = subprocess.run([sys.executable, "-c", ACTIVATE], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(result.stdout, end="")
    if result.returncode:
        raise SystemExit("run: the device could not be made ready (see above); `make doctor` says more")
    return "simulated" in result.stdout


def report_results(started: float) -> None:
    """Say where the results are, if this run wrote any."""
    results = BUILD / "results.json"
    if results.is_file() and results.stat().st_mtime >= started:
        print(f"results:   {shown(results)} ({len(json.loads(results.read_text()))} records)")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="which notebooks: 03, or 03_capture_and_replay (default: all)")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="set a parameter")
    parser.add_argument("--in-place", action="store_true", help="replace the committed notebooks, tidied")
    parser.add_argument("--solutions", action="store_true", help="the solutions to the exercises, not the course")
    options = parser.parse_args(arguments)
    within = SOLUTIONS if options.solutions else "."
    folder = NOTEBOOKS / within
    try:
        if options.in_place and options.p:
            raise WrongArgumentError("--in-place runs with the default parameters: leave -p away")
        paths = find(options.names, folder)
        parameters = choose_parameters(paths, options.p)
    except WrongArgumentError as error:
        print(f"run: {error}", file=sys.stderr)
        return 2

    started = time.time()
    quiet_kernels(BUILD / "ipython")
    if not prepare_device():
        for path in [path for path in paths if path.stem in PACED]:
            print(f"{path.stem:<30}  left out: it models a card, on the simulated device")
            paths.remove(path)
    began = time.monotonic()
    out = BUILD / ("executed" if options.in_place else "notebooks") / within
    failures = []
    for path in paths:
        clock = time.monotonic()
        print(f"{path.stem:<30}", end="", flush=True)
        try:
            output = out / path.name
            execute(path, output, parameters[path])
            notes = put_in_place(output, path) if options.in_place else []
            print(f"{time.monotonic() - clock:6.1f} s")
            for note in notes:
                print(f"  {note}")
        except NotebookFailedError as failure:
            print("  FAILED")
            print(f"  {failure}\n  what it got to: {shown(failure.output)}")
            failures.append(path.stem)
    print(f"{'all notebooks' if len(paths) > 1 else ''}".ljust(30) + f"{time.monotonic() - began:6.1f} s")
    print(f"notebooks: {shown(folder if options.in_place else out)}/")
    report_results(started)
    if failures:
        print(f"run: {len(failures)} of {len(paths)} notebooks failed: {', '.join(failures)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nrun: interrupted", file=sys.stderr)
        sys.exit(130)
