"""The notebooks as the tests see them: which there are, what a cell printed, running one, comparing its outputs."""

import re
from pathlib import Path

import nbformat
import pytest
import run_notebooks
from nbval.plugin import find_comment_markers, get_sanitize_patterns

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
SANITIZE = ROOT / "tests" / "sanitize.cfg"
COURSE = [
    "01_set_up_environment",
    "02_watch_eager_execution",
    "03_capture_and_replay",
    "04_avoid_the_pitfalls",
    "05_plot_the_results",
    "06_pull_the_right_lever",
    "07_predict_before_you_measure",
    "08_capture_a_generation_loop",
    "09_check_your_own_model",
    "10_train_with_graphs",
]
# Also the notebooks that were added since; a missing one of these fails by name.
STEMS = sorted({*COURSE, *(path.stem for path in FOLDER.glob(run_notebooks.PATTERN))})
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")

every_notebook = pytest.mark.parametrize("stem", STEMS)


def load(stem: str):
    path = FOLDER / f"{stem}.ipynb"
    if not path.is_file():
        pytest.fail(f"notebooks/{stem}.ipynb is missing", pytrace=False)
    return nbformat.read(path, as_version=4)


def cells(notebook, kind: str) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def comparable(outputs, patterns) -> dict[str, str]:
    """What nbval would compare: printed text and data by kind, no pictures, volatile parts replaced."""
    found: dict[str, str] = {}
    for output in outputs:
        parts = {output.name: output.text} if output.output_type == "stream" else output.get("data", {})
        for kind, text in parts.items():
            if not kind.startswith("image/") and "widget" not in kind:
                found[kind] = found.get(kind, "") + str(text)
    for kind, text in found.items():
        for pattern, replacement in patterns:
            text = re.sub(pattern, replacement, text)
        found[kind] = text.rstrip()
    return found


def checked(cell) -> bool:
    """Marked `# NBVAL_CHECK_OUTPUT`."""
    return cell.cell_type == "code" and dict(find_comment_markers(cell.source)).get("check") is True


def differences(saved, executed) -> list[str]:
    """Cells marked for checking whose fresh outputs, of either pass, are not the saved ones."""
    patterns = get_sanitize_patterns(SANITIZE.read_text())
    fresh = {cell.id: cell for cell in executed.cells}
    found = []
    for cell in filter(checked, saved.cells):
        want = comparable(cell.outputs, patterns)
        runs = {"first": fresh[cell.id].outputs, "second": fresh[cell.id].metadata.get("second")}
        for run, outputs in runs.items():
            if outputs is not None and (got := comparable(outputs, patterns)) != want:
                found.append(f"cell {cell.id}, {run} run: saved {want}, now {got}")
    return found


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def warnings_shown(notebook) -> list[str]:
    """What a notebook wrote to stderr: noise for a reader."""
    return [
        f"cell {cell.id}: {output.text.strip()[:200]}"
        for cell in cells(notebook, "code")
        for output in [*cell.outputs, *cell.metadata.get("second", [])]
        if output.get("name") == "stderr"
    ]


def run(path: Path, output: Path, parameters=None, **options):
    """Execute; fail with the one line a user would see."""
    try:
        return run_notebooks.execute(path, output, parameters, **options)
    except run_notebooks.NotebookFailedError as failure:
        pytest.fail(str(failure), pytrace=False)
