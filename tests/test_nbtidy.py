"""tools/nbtidy.py: each departure from the canonical form is found, and mended where that is possible."""

import base64

import nbformat
import nbtidy
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output


def clean() -> nbformat.NotebookNode:
    """A notebook in canonical form."""
    shown = new_output("execute_result", {"text/plain": "3"}, execution_count=2)
    return new_notebook(
        metadata=nbtidy.METADATA,
        cells=[
            new_markdown_cell("# Capture a graph", id="capture-a-graph"),
            new_code_cell(
                "print(1)", id="print-one", execution_count=1, outputs=[new_output("stream", name="stdout", text="1\n")]
            ),
            new_code_cell("1 + 2", id="add-two-numbers", execution_count=2, outputs=[shown]),
        ],
    )


def text_of(notebook) -> str:
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def test_a_clean_notebook_is_left_alone():
    text = text_of(clean())
    assert nbtidy.tidied(text) == (text, [], [])


def change_ids(notebook):
    notebook.cells[0]["id"] = "3f2a9c1e"
    notebook.cells[1]["id"] = "add-two-numbers"
    notebook.cells[2]["id"] = "0a4d9c1e-55aa-4d55-8b1e-2f0c8a9d7e11"


def change_counts(notebook):
    notebook.cells[1].execution_count = 7
    notebook.cells[2].execution_count = notebook.cells[2].outputs[0].execution_count = 12


def change_metadata(notebook):
    notebook.metadata["papermill"] = {"duration": 3.5}
    notebook.metadata["widgets"] = {}
    notebook.metadata["kernelspec"]["name"] = "my-env"
    notebook.cells[1].metadata = {"papermill": {"duration": 0.1}, "execution": {}, "tags": ["parameters"]}


def change_streams(notebook):
    outputs = notebook.cells[1].outputs
    outputs.insert(0, new_output("stream", name="stderr", text="a warning\n"))
    outputs.append(new_output("stream", name="stdout", text=" 10%\r 50%\r100%\n"))


def change_widgets(notebook):
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "VBox(...)"}
    notebook.cells[1].outputs.insert(0, new_output("display_data", view))
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}


def change_paths(notebook):
    notebook.cells[1].outputs[0].text = f"wrote {nbtidy.ROOT}/build/results.json\n"


CHANGES = change_ids, change_counts, change_metadata, change_streams, change_paths, change_widgets


@pytest.mark.parametrize("change", CHANGES)
def test_is_found_and_mended(change):
    notebook = clean()
    change(notebook)
    mended, notes, left = nbtidy.tidied(text_of(notebook))
    assert notes and not left
    assert nbtidy.tidied(mended) == (mended, [], [])


def test_mending_keeps_what_matters():
    notebook = clean()
    for change in (change_ids, change_metadata, change_streams, change_widgets):
        change(notebook)
    mended = nbformat.reads(nbtidy.tidied(text_of(notebook))[0], as_version=4)
    assert mended.cells[0].id == "capture-a-graph"
    assert mended.cells[1].metadata == {"tags": ["parameters"]}
    assert [output.text for output in mended.cells[1].outputs] == ["1\n100%\n"]
    assert mended.metadata == nbtidy.METADATA


@pytest.mark.parametrize("form", [lambda text: text + "\n", lambda text: text.replace("\n ", "\n   ")])
def test_json_is_as_nbformat_writes_it(form):
    text = text_of(clean())
    mended, notes, _ = nbtidy.tidied(form(text))
    assert mended == text and len(notes) == 1


def add_output(data):
    def change(notebook):
        notebook.cells[1].outputs.append(new_output("display_data", data))

    return change


def set_source(source):
    def change(notebook):
        notebook.cells[1].source = source

    return change


def forget_execution(notebook):
    notebook.cells[2].execution_count = None
    notebook.cells[2].outputs = []


def keep_error(notebook):
    notebook.cells[1].outputs.append(new_output("error", ename="RuntimeError", evalue="x", traceback=[]))


def print_path(notebook):
    notebook.cells[1].outputs[0].text = "built in " + "/".join(["", "home", "me", "cache"]) + "\n"


def figure(size):
    return {"image/png": base64.b64encode(b"x" * size).decode()}


@pytest.mark.parametrize(
    "change, message",
    [
        (forget_execution, "not executed"),
        (keep_error, "RuntimeError"),
        (print_path, "path of one machine"),
        (set_source("   "), "empty"),
        (set_source("open('/" + "tmp/x')"), "path of one machine"),
        (add_output(figure(60_001)), "figure of 60 KB"),
        (add_output({"text/html": "x" * 300_000}), "limit 300 KB"),
        (lambda notebook: notebook.cells[1].metadata.update(tags=["raises-exception"]), "papermill does not honour it"),
    ],
)
def test_is_found_for_the_author_to_mend(change, message):
    notebook = clean()
    change(notebook)
    left = nbtidy.tidied(text_of(notebook))[2]
    assert len(left) == 1 and message in left[0]


def test_what_is_allowed():
    notebook = clean()
    add_output(figure(59_000))(notebook)
    notebook.cells[1].outputs[0].text = "source /usr/local/Ascend/ascend-toolkit/set_env.sh, 1/2, and/or\n"
    assert nbtidy.tidied(text_of(notebook))[2] == []


@pytest.mark.parametrize("name", ["capture-the-graph", "title", "step-2", "a"])
def test_good_ids(name):
    assert nbtidy.good_id(name)


@pytest.mark.parametrize("name", ["Capture", "a_b", "8e4c1b7f", "deadbeef", "-a", "a--b", "cell-3", "cell3", "a" * 65])
def test_bad_ids(name):
    assert not nbtidy.good_id(name)


def test_commands(tmp_path, capsys):
    path = tmp_path / "01_toy.ipynb"
    notebook = clean()
    change_counts(notebook)
    path.write_text(text_of(notebook))
    assert nbtidy.main(["--check", str(path)]) == 1
    assert "execution counts" in capsys.readouterr().out
    assert nbtidy.main(["--fix", str(path)]) == 0
    assert nbtidy.main(["--check", str(path)]) == 0
    path.write_text('{"cells": [')
    assert nbtidy.main(["--fix", str(path)]) == 1
    assert "unreadable" in capsys.readouterr().out
    assert path.read_text() == '{"cells": ['
    assert [item.name for item in tmp_path.iterdir()] == ["01_toy.ipynb"]
