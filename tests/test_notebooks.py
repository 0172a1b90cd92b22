"""The course itself: every notebook runs, runs twice, says what it said when it was committed, and is well formed.

One kernel per notebook serves three questions (does it run under papermill, can every cell be run again, do the saved
outputs hold), because a kernel that imports torch costs seconds. Every notebook runs in a copy of notebooks/ in a
temporary folder, so that `../build/results.json` is that folder's and a user's own results stay as they are.
"""

import ast
import copy
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import nbtidy
import papermill
import pytest
import run_notebooks
from course import (
    COURSE,
    FOLDER,
    LINK,
    ROOT,
    SANITIZE,
    STEMS,
    cells,
    checked,
    comparable,
    differences,
    every_notebook,
    load,
    printed,
    run,
    warnings_shown,
)
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, papermill_engines

# Runs with parameters other than the defaults: notebook -> parameters.
CHANGED = {
    "01_set_up_environment": {"quick": False},
    "05_plot_the_results": {"results": "../build/elsewhere/results.json"},  # its picture goes beside them
}
# Short enough to run a second time, by nbval's own pytest plug-in.
SHORT = ["01_set_up_environment"]
# Seconds. A cell under the first is run three times in all. One over the second runs once: it makes a table of four
# models at full size, in processes of its own, and CI would do little else.
REPEAT_LIMIT, ONCE_LIMIT = 0.5, 10


# ---- running -------------------------------------------------------------------------------------------------------


class SecondRunError(Exception):
    pass


class TwiceClient(PapermillNotebookClient):
    """Runs the notebook, then all of it again in the same kernel, short cells twice in a row.

    The notebook keeps the outputs of the first pass. Those of the second go into each cell's metadata; a cell that is
    repeated at once may say something else (`changed: False`), it must only run.
    """

    def papermill_execute_cells(self):
        super().papermill_execute_cells()
        if any(output.output_type == "error" for cell in cells(self.nb, "code") for output in cell.outputs):
            return
        for index, cell in enumerate(self.nb.cells):
            if cell.cell_type != "code":
                continue
            took = cell.metadata.papermill.duration
            for repeat in range((took < ONCE_LIMIT) + (took < REPEAT_LIMIT)):
                again = copy.deepcopy(cell)
                try:
                    self.execute_cell(again, index)
                except CellExecutionError as error:
                    reason = f"{error.ename}: {error.evalue}"
                    raise SecondRunError(f"cell {cell.id} cannot be run twice: {reason}") from error
                finally:
                    self.nb.cells[index] = cell  # execute_cell puts its own argument there
                if repeat == 0:
                    cell.metadata["second"] = again.outputs


class TwiceEngine(Engine):
    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, execution_timeout=None, start_timeout=60, **_):
        TwiceClient(nb_man, kernel_name=kernel_name, timeout=execution_timeout, startup_timeout=start_timeout).execute()


papermill_engines.register("twice", TwiceEngine)


@pytest.fixture(scope="module")
def workshop(kernels, tmp_path_factory):
    """A copy of notebooks/, with the simulated device built, so that its progress lines do not end up in a notebook."""
    run_notebooks.prepare_device()
    folder = tmp_path_factory.mktemp("course") / "notebooks"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    shutil.copytree(ROOT / "results", folder.parent / "results")  # notebook 5 shows the gallery
    (folder.parent / "build").mkdir()
    return folder


def executed_cells(notebook) -> int:
    return sum(cell.execution_count is not None and bool(cell.source.strip()) for cell in cells(notebook, "code"))


@pytest.mark.notebook
@every_notebook
def test_runs_twice_and_says_the_same(stem, workshop):
    saved = load(stem)
    executed = run(workshop / f"{stem}.ipynb", workshop.parent / "executed" / f"{stem}.ipynb", engine_name="twice")
    assert executed_cells(executed) == len(cells(saved, "code")) > 0
    once = [cell for cell in cells(executed, "code") if "second" not in cell.metadata]
    assert all(cell.metadata.papermill.duration >= ONCE_LIMIT for cell in once) and len(once) <= 2
    assert differences(saved, executed) == []
    assert warnings_shown(executed) == []
    stubs = [cell for cell in cells(executed, "code") if "exercise" in cell.metadata.get("tags", [])]
    solved = [cell.id for cell in stubs if not printed(cell).startswith(("to do: ", "not yet: "))]
    assert stubs and solved == [], "an exercise must fail its check until somebody solves it"


@pytest.mark.notebook
@pytest.mark.parametrize("stem", CHANGED)
def test_runs_with_changed_parameters(stem, workshop):
    path = workshop / f"{stem}.ipynb"
    load(stem)
    changed = CHANGED[stem]
    declared = run_notebooks.declared_parameters(path)
    assert set(changed) <= set(declared), "papermill itself would accept a misspelled name"
    assert all(repr(value) != declared[name]["default"] for name, value in changed.items())
    executed = run(path, workshop.parent / "changed" / f"{stem}.ipynb", changed)
    injected = [cell for cell in executed.cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert len(injected) == 1
    if "results" in changed:
        assert (workshop / changed["results"]).with_name("eager_against_replay.png").is_file()


@pytest.mark.notebook
@pytest.mark.parametrize("stem", SHORT)
def test_nbval_agrees(stem, workshop):
    count = len(cells(load(stem), "code"))
    result = nbval(workshop / f"{stem}.ipynb")
    assert result.returncode == 0, result.stdout[-3000:]
    assert re.search(rf"\b{count} passed", result.stdout), result.stdout[-3000:]


def nbval(path: Path) -> subprocess.CompletedProcess:
    """nbval's own plug-in on one notebook. Lax: compares the cells marked for it, runs all."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={path.parent}"]
    options = ["--nbval-lax", "--nbval-current-env", f"--nbval-sanitize-with={SANITIZE}"]
    return subprocess.run([*command, *options, str(path)], capture_output=True, text=True, cwd=path.parent)


# ---- the form of a notebook ----------------------------------------------------------------------------------------


def test_is_canonical():
    command = [sys.executable, str(ROOT / "tools" / "nbtidy.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@every_notebook
def test_title_is_what_the_file_is_called(stem):
    """`03_capture_and_replay` -> one H1, at the top, that begins with the verb Capture."""
    titles = [
        (index, title)
        for index, cell in enumerate(load(stem).cells)
        if cell.cell_type == "markdown"
        for title in re.findall(r"^# +(.+)$", re.sub(r"^```.*?^```", "", cell.source, flags=re.M | re.S), re.M)
    ]
    assert len(titles) == 1 and titles[0][0] == 0, f"one H1, in the first cell: {titles}"
    verb = stem.split("_")[1]
    assert re.sub(r"^[\d. :]+", "", titles[0][1]).lower().startswith(verb), f"the title begins with {verb!r}"


@every_notebook
def test_opens_and_ends_like_the_others(stem):
    notebook = load(stem)
    first_code = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    opening = "\n".join(cell.source for cell in notebook.cells[:first_code])
    for part in (r"You will learn", r"You need", r"\d+ minutes"):
        assert re.search(part, opening), f"the opening lacks {part!r}"
    headings = re.findall(r"^## +(.+?) *$", "\n".join(cell.source for cell in cells(notebook, "markdown")), re.M)
    assert headings[-3:] == ["Recap", "Exercises", "Further reading"], headings


@every_notebook
def test_navigation_leads_to_the_neighbours(stem):
    place = STEMS.index(stem)
    neighbours = [f"{STEMS[i]}.ipynb" for i in (place - 1, place + 1) if 0 <= i < len(STEMS)]
    markdown = cells(load(stem), "markdown")
    for cell in (markdown[0], markdown[-1]):
        targets = {target.split("#")[0] for target in LINK.findall(cell.source)}
        assert {*neighbours, "index.ipynb"} <= targets, f"{cell.id}: {targets}"


@every_notebook
def test_relative_links_resolve(stem):
    targets = [t for cell in cells(load(stem), "markdown") for t in LINK.findall(cell.source)]
    relative = [t.split("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    assert [target for target in relative if not (FOLDER / target).exists()] == []


@every_notebook
def test_helpers_come_before_torch(stem):
    """torch finds no device unless helpers prepared it, and then the first cell already fails."""
    code = cells(load(stem), "code")
    first = next(cell for cell in code if "parameters" not in cell.metadata.get("tags", []))
    assert "helpers" in imports(first.source), "the first code cell imports helpers"
    order = [name for cell in code for name in imports(cell.source) if name in ("helpers", "torch", "torch_npu")]
    assert order[0] == "helpers"


def imports(source: str) -> list[str]:
    """Top-level names of the modules that a cell imports, in order."""
    plain = re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.M)
    nodes = [node for node in ast.walk(ast.parse(plain)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = []
    for node in sorted(nodes, key=lambda node: node.lineno):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        names += [module.split(".")[0] for module in modules]
    return names


@every_notebook
def test_parameters_are_typed(stem):
    code = cells(load(stem), "code")
    tagged = [index for index, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1 and tagged[0] < 3, "one cell with the tag `parameters`, among the first three code cells"
    body = ast.parse(code[tagged[0]].source).body
    assert body and all(isinstance(line, ast.AnnAssign) and line.value for line in body), "only `name: type = value`"
    declared = run_notebooks.declared_parameters(FOLDER / f"{stem}.ipynb")
    assert set(declared) == {line.target.id for line in body}
    assert declared.get("quick", {}).get("default") == "True"


@every_notebook
def test_below_each_figure_is_a_sentence_on_what_to_see(stem):
    waiting = None  # the last figure, until it is explained
    for cell in load(stem).cells:
        if cell.cell_type == "markdown" and "What to see" in cell.source:
            waiting = None
        if any(kind.startswith("image/") for o in cell.get("outputs", []) for kind in o.get("data", {})):
            assert waiting is None, f"nothing says what to see in the figure of {waiting}"
            waiting = cell.id
    assert waiting is None, f"nothing says what to see in the figure of {waiting}"


@every_notebook
def test_something_is_checked(stem):
    """Comparing outputs proves nothing where no cell asks for it or nothing was saved."""
    marked = [cell for cell in load(stem).cells if checked(cell)]
    assert marked, "no cell is marked # NBVAL_CHECK_OUTPUT"
    silent = [cell.id for cell in marked if not comparable(cell.outputs, [])]
    assert silent == [], "marked cells without saved text"


# ---- does the harness notice? --------------------------------------------------------------------------------------


def toy(folder: Path, *sources: str, name="01_toy.ipynb") -> Path:
    notebook = new_notebook(cells=[new_markdown_cell("# Toy", id="title")])
    for number, source in enumerate(sources):
        notebook.cells.append(new_code_cell(source, id=f"step-{'abcdefgh'[number]}"))
    path = folder / name
    nbformat.write(notebook, path)
    return path


def outcome(path: Path, **options) -> str:
    """The one line with which a notebook fails; also checks that nothing looks like a result."""
    output = path.parent / "out" / path.name
    with pytest.raises(run_notebooks.NotebookFailedError) as failure:
        run_notebooks.execute(path, output, **options)
    assert not output.exists()
    assert "\n" not in str(failure.value)
    assert failure.value.output.is_file()
    return str(failure.value)


@pytest.mark.notebook
def test_an_error_is_one_line(kernels, tmp_path):
    path = toy(tmp_path, "x = 1", "raise ValueError('first line\\nsecond line')", "x = 2")
    assert outcome(path) == "01_toy: cell 2 (step-b): ValueError: first line"


@pytest.mark.notebook
def test_a_bad_magic_fails(kernels, tmp_path):
    """IPython prints UsageError and reports no error, so nbval passes it."""
    path = toy(tmp_path, "%no_such_magic\n1")
    assert outcome(path) == "01_toy: cell 1 (step-a): UsageError: Line magic function `%no_such_magic` not found."


@pytest.mark.notebook
def test_a_killed_kernel_is_one_line(kernels, tmp_path):
    path = toy(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert outcome(path) == "01_toy: the kernel died (killed, out of memory, or crashed)"


@pytest.mark.notebook
def test_a_cell_that_runs_only_once_is_found(kernels, tmp_path):
    path = toy(tmp_path, "x = globals().get('x', 0) + 1", "assert x < 2, 'not again'")
    assert outcome(path, engine_name="twice").endswith("cell step-b cannot be run twice: AssertionError: not again")


@pytest.mark.notebook
def test_a_changed_output_is_found(kernels, tmp_path):
    """By both comparisons: ours, and nbval's."""
    path = toy(tmp_path, "# NBVAL_CHECK_OUTPUT\nprint('max_abs 0.0, took 1.5 ms')", "print('not compared')")
    executed = run(path, tmp_path / "out.ipynb", engine_name="twice")
    path.write_text(
        (tmp_path / "out.ipynb").read_text().replace("max_abs 0.0, took 1.5 ms\\n", "max_abs 0.0, took 99 ms\\n")
    )
    saved = nbformat.read(path, as_version=4)
    assert differences(saved, executed) == []
    assert nbval(path).returncode == 0

    saved.cells[1].outputs[0].text = "max_abs 0.1, took 1.5 ms\n"
    nbformat.write(saved, path)
    assert [line.split(":")[0] for line in differences(saved, executed)] == [
        "cell step-a, first run",
        "cell step-a, second run",
    ]
    assert nbval(path).returncode == 1


@pytest.fixture
def small_course(kernels, monkeypatch, tmp_path):
    """`make run` on two notebooks of its own; without a device."""
    monkeypatch.setattr(run_notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(run_notebooks, "BUILD", tmp_path / "build")
    monkeypatch.setattr(run_notebooks, "prepare_device", lambda: True)
    monkeypatch.setenv("IPYTHONDIR", os.environ["IPYTHONDIR"])  # main() sets its own
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    write = "from pathlib import Path\nPath('../build/results.json').write_text('[{}, {}]')"
    toy(tmp_path / "notebooks", write, name="01_first.ipynb")
    toy(tmp_path / "notebooks", "1 / 0", name="02_second.ipynb")
    return tmp_path


@pytest.mark.notebook
def test_run_says_what_failed_and_where_to_look(small_course, capsys):
    (small_course / "build" / "notebooks").mkdir(parents=True)
    (small_course / "build" / "notebooks" / "02_second.ipynb").write_text("of an earlier run")
    assert run_notebooks.main([]) == 1
    said = capsys.readouterr()
    assert "02_second: cell 1 (step-a): ZeroDivisionError: division by zero" in said.out
    assert "what it got to: build/notebooks/02_second.failed.ipynb" in said.out
    assert "results:   build/results.json (2 records)" in said.out
    assert said.err == "run: 1 of 2 notebooks failed: 02_second\n"
    left = sorted(path.name for path in (small_course / "build" / "notebooks").iterdir())
    assert left == ["01_first.ipynb", "02_second.failed.ipynb"]


@pytest.mark.notebook
def test_run_leaves_out_what_a_real_device_has_no_clock_for(small_course, monkeypatch, capsys):
    assert set(run_notebooks.PACED) < set(COURSE)
    monkeypatch.setattr(run_notebooks, "prepare_device", lambda: False)
    monkeypatch.setattr(run_notebooks, "PACED", ("02_second",))
    assert run_notebooks.main([]) == 0
    assert "02_second                       left out: it models a card" in capsys.readouterr().out


@pytest.mark.notebook
def test_run_in_place_replaces_only_what_ran(small_course, capsys):
    before = (small_course / "notebooks" / "02_second.ipynb").read_text()
    (small_course / "build").mkdir()
    assert run_notebooks.main(["--in-place"]) == 1
    assert (small_course / "notebooks" / "02_second.ipynb").read_text() == before
    text = (small_course / "notebooks" / "01_first.ipynb").read_text()
    assert nbtidy.tidied(text) == (text, [], [])
    assert sorted(path.name for path in (small_course / "notebooks").iterdir()) == ["01_first.ipynb", "02_second.ipynb"]
    assert "notebooks: notebooks/" in capsys.readouterr().out


def test_a_notebook_that_ran_nothing_is_found(tmp_path):
    path = toy(tmp_path, "x = 1")
    executed = papermill.execute_notebook(path, None, prepare_only=True, kernel_name="python3", progress_bar=False)
    assert executed_cells(executed) == 0


def test_a_misspelled_parameter_is_refused(tmp_path):
    path = toy(tmp_path, "quick: bool = True\nsteps: int = 3\nresults: str = 'a.json'")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].metadata["tags"] = ["parameters"]
    notebook.metadata = nbtidy.METADATA
    nbformat.write(notebook, path)
    assert run_notebooks.choose_parameters([path], [["quick", "false"], ["steps", "7"], ["results", "007"]]) == {
        path: {"quick": False, "steps": 7, "results": "007"}
    }
    for name, value, message in [
        ("qiuck", "False", "no notebook has a parameter 'qiuck'; there are quick, results, steps"),
        ("steps", "many", "parameter steps is int, not 'many'"),
        ("quick", "1", "parameter quick is bool, not '1'"),
    ]:
        with pytest.raises(run_notebooks.WrongArgumentError, match=re.escape(message)):
            run_notebooks.choose_parameters([path], [[name, value]])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["99"], "no notebook '99'"),
        (["-p", "no_such_parameter", "1"], "no notebook has a parameter 'no_such_parameter'"),
        (["--in-place", "-p", "quick", "False"], "leave -p away"),
    ],
)
def test_wrong_arguments_stop_before_anything_runs(arguments, message, capsys):
    assert run_notebooks.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
