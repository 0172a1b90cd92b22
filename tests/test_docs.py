"""The teacher's page: the notebooks and headings that it names exist, and its minutes add up."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
TEACHING = (ROOT / "docs" / "teaching.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
SYLLABI = {"90 minutes": 90, "Half a day: 210 minutes": 210, "One day: 420 minutes": 420}


def texts(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]


HEADINGS = {
    number: [title for text in texts(path) for title in re.findall(r"^#{2,} +(.+?) *$", text, re.M)]
    for number, path in enumerate(NOTEBOOKS, 1)
}


def part(heading: str, level: int = 2) -> str:
    """What stands below a heading of the page, up to the next one of its level or above."""
    found = re.search(rf"^#{{{level}}} {re.escape(heading)}\n(.*?)(?=^#{{2,{level}}} |\Z)", TEACHING, re.M | re.S)
    assert found, f"no heading {heading!r}"
    return found.group(1)


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without its heading."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [line for line in lines if line[0] not in ("minutes", "section", "notebook", "stuck", "syllabus")]


def unknown(number: int, cell: str) -> set[str]:
    """Section names in a cell that the notebook does not have."""
    named = re.findall(r"\*([^*]+)\*", cell)
    assert named, cell
    return set(named) - set(HEADINGS[number])


@pytest.mark.parametrize("syllabus", SYLLABI)
def test_syllabus(syllabus):
    """Each row's notebook and sections exist, in the notebook's order; the minutes are those of the heading."""
    plan = rows(part(syllabus))
    assert sum(int(row[0]) for row in plan) == SYLLABI[syllabus]
    taught = {}
    for _, notebook, sections, when_late in plan:
        if notebook == "–":
            continue
        number, target = re.fullmatch(r"\[(\d+)\]\(\.\./(notebooks/.+)\)", notebook).groups()
        assert ROOT / target == NOTEBOOKS[int(number) - 1]
        assert not unknown(int(number), sections)
        assert when_late
        named = [name for name in re.findall(r"\*([^*]+)\*", sections) if name != "Exercises"]  # fit anywhere
        taught.setdefault(int(number), []).extend(named)
    assert list(taught) == sorted(taught)
    for number, sections in taught.items():
        assert sections == sorted(sections, key=HEADINGS[number].index), number


def test_each_section_of_a_syllabus_has_something_to_say():
    for number in HEADINGS:
        said = {row[0].strip("*") for row in rows(part(f"Notebook {number}", 3)) if row[0].startswith("*")}
        asked = set()
        for syllabus in SYLLABI:
            for _, notebook, sections, _ in rows(part(syllabus)):
                if notebook.startswith(f"[{number}]"):
                    asked |= set(re.findall(r"\*([^*]+)\*", sections))
        assert asked - {"Exercises"} <= said, number


@pytest.mark.parametrize("number", HEADINGS)
def test_what_to_say(number):
    """A sentence and a question for sections that exist, and what frees those who are stuck."""
    say, stuck = part(f"Notebook {number}", 3).split("| stuck |")
    table = rows(say)
    assert table and all(len(row) == 3 and all(row) for row in table)
    assert {name for row in table for name in unknown(number, row[0])} == set()
    assert all("?" in row[2] or row[2].startswith("Name ") for row in table)
    assert len(rows(stuck)) >= 2


def test_reading_minutes_are_the_notebooks_own():
    table = rows(part("Time for each notebook"))
    assert len(table) == len(NOTEBOOKS)
    for (_, minutes, _, exercise), path in zip(table, NOTEBOOKS, strict=True):
        opening, *rest = texts(path)
        assert f"*{minutes} minutes*" in opening, path.name
        assert any(re.search(rf"^### {exercise.split(':')[0]}\. ", text, re.M) for text in rest), path.name
