"""The exercises: every stub fails its check, every solution passes it, and a wrong answer is told what is wrong.

The stubs are run with their notebooks (test_notebooks.py), the checks are tried in test_exercises_*.py.
"""

import re
import shutil
from pathlib import Path

from helpers import exercises
from helpers.device import task_queue
from helpers.exercises.checking import _CHECKS

import nbformat
import pytest
import run_notebooks
import torch
from course import FOLDER, LINK, STEMS, cells, differences, every_notebook, load, printed, run, warnings_shown

CALL = re.compile(r"^exercises\.check\((\w+)\)$", re.M)


def exercises_of(notebook) -> dict[str, nbformat.NotebookNode]:
    """The cells with the tag `exercise`, by the function that they check."""
    tagged = [cell for cell in cells(notebook, "code") if "exercise" in cell.metadata.get("tags", [])]
    assert all(len(CALL.findall(cell.source)) == 1 for cell in tagged), [cell.id for cell in tagged]
    return {CALL.search(cell.source).group(1): cell for cell in tagged}


def signature(cell, name: str) -> str:
    return re.search(rf"^def {name}\((.*?)\)", cell.source, re.M).group(1)


@every_notebook
def test_notebook_and_solutions_have_the_same_exercises(stem):
    stubs, solved = exercises_of(load(stem)), exercises_of(load(f"solutions/{stem}"))
    assert len(stubs) >= 2 and list(stubs) == list(solved)
    for name in stubs:
        assert signature(stubs[name], name) == signature(solved[name], name)
        assert printed(stubs[name]).startswith(("to do: ", "not yet: ")), "as committed, a stub is not solved"
        assert printed(solved[name]).startswith("solved: ")


@every_notebook
def test_each_exercise_has_a_number_a_hint_and_its_solution_at_hand(stem):
    markdown = cells(load(stem), "markdown")
    (section,) = [i for i, cell in enumerate(markdown) if re.search(r"^## Exercises$", cell.source, re.M)]
    texts = "\n".join(cell.source for cell in markdown[section:])
    numbers = re.findall(r"^### (\d+)\. ", texts, re.M)
    assert numbers == [str(i + 1) for i in range(len(exercises_of(load(stem))))]
    assert texts.count("*Hint:*") >= len(numbers)
    assert f"solutions/{stem}.ipynb" in LINK.findall(texts)


def test_every_check_belongs_to_one_notebook():
    used = [name for stem in STEMS for name in exercises_of(load(stem))]
    assert sorted(used) == sorted(_CHECKS)


@pytest.mark.notebook
@every_notebook
def test_solutions_pass(stem, kernels, tmp_path):
    run_notebooks.prepare_device()
    folder = tmp_path / "notebooks"
    shutil.copytree(FOLDER / "solutions", folder / "solutions")
    executed = run(folder / "solutions" / f"{stem}.ipynb", tmp_path / "executed.ipynb")
    found = {name: printed(cell) for name, cell in exercises_of(executed).items()}
    assert found and {name: text for name, text in found.items() if not text.startswith("solved: ")} == {}
    assert differences(load(f"solutions/{stem}"), executed) == []
    assert warnings_shown(executed) == []


@every_notebook
def test_links_of_solutions_resolve(stem):
    path = Path(f"{stem}.ipynb")
    markdown = cells(load(f"solutions/{stem}"), "markdown")
    targets = [target.split("#")[0] for cell in markdown for target in LINK.findall(cell.source)]
    assert f"../{path}" in targets, "back to the notebook"
    assert [t for t in targets if not re.match(r"[a-z]+:|$", t) and not (FOLDER / "solutions" / t).exists()] == []


# ---- the check itself ----------------------------------------------------------------------------------------------


def test_a_renamed_function_is_told_its_name():
    def softmax_by_hnd(x):
        return ...

    with pytest.raises(ValueError, match="did you mean softmax_by_hand"):
        exercises.check(softmax_by_hnd)


def test_a_failed_capture_leaves_the_process_usable(verdict, x):
    def softmax_by_hand(x):
        with torch.npu.graph(torch.npu.NPUGraph()):
            return x.sum().item()

    before = torch.npu.current_stream()
    said = verdict(softmax_by_hand)
    assert said.startswith("not yet: line ") and "`return x.sum().item()`" in said
    assert torch.npu.current_stream() == before
    assert (x + 1)[0] == 1


def test_a_capture_that_nobody_ends_is_ended(verdict, x):
    def softmax_by_hand(x):
        with torch.npu.stream(torch.npu.Stream()):
            torch.npu.NPUGraph().capture_begin()
        return x

    assert verdict(softmax_by_hand).startswith("not yet: a capture is begun and not ended")
    assert (x + 1)[0] == 1


def test_gradients_and_the_task_queue_are_put_back(verdict):
    def softmax_by_hand(x):
        torch.set_grad_enabled(False)
        torch.npu.set_task_queue_enable(1)
        return ...

    level = task_queue()
    assert verdict(softmax_by_hand).startswith("to do: ")
    assert torch.is_grad_enabled() and task_queue() == level
