"""Keep the committed notebooks in one canonical form, so that their differences are differences of content.

    python tools/nbtidy.py --check [NOTEBOOK ...]    say what is not canonical; exit code 1 if anything is
    python tools/nbtidy.py --fix   [NOTEBOOK ...]    mend what can be mended, say what cannot

Without names: every notebook in notebooks/ and in its solutions/. The form: executed from the first cell to the last,
execution counts 1, 2, 3 ...; the `python3` kernel, nothing else in the metadata; cell ids that say what the cell is
(`measure-eager`); no stderr, no errors, no absolute paths, no widgets, no timings; figures under 60 KB, notebooks
under 300 KB; JSON as nbformat writes it.
"""

import argparse
import base64
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "notebooks", ROOT / "notebooks" / "solutions"
FIGURE_LIMIT = 60_000  # bytes
NOTEBOOK_LIMIT = 300_000  # bytes
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
GOOD_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
RANDOM_ID = re.compile(r"[0-9a-f]{8,}|.*[0-9a-f]{12}|cell-?\d+|[a-z]+-?[0-9a-f]*\d[0-9a-f]{6,}")
# Where a machine's own files live. /usr/local/Ascend is the same on every Ascend host, so a notebook may name it.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/$}-])/(?:(?:home|root|Users|tmp|private|var|work|workspace|mnt|opt|srv|builds)/[\w.]|\S*site-packages)\S*"
)
TEXT_TYPES = ("text/plain", "text/html", "text/markdown")


def slug(text: str, limit: int = 40) -> str:
    """`## 2. Capture the graph` -> `capture-the-graph`, cut at a word."""
    words = re.sub(r"[^a-z0-9]+", "-", re.sub(r"[`'’]", "", text.lower())).strip("-")
    words = re.sub(r"^[0-9-]+", "", words)
    while len(words) > limit and "-" in words:
        words = words.rsplit("-", 1)[0]
    return words[:limit]


def name_cell(cell: NotebookNode, heading: str) -> str:
    """A descriptive id from what the cell says: heading, first comment, what it defines, or else its section."""
    if cell.cell_type == "markdown":
        found = re.search(r"^#+ +(.+)$", cell.source, re.M)
        return slug(found.group(1)) if found else f"{heading}-text"
    if "parameters" in cell.metadata.get("tags", []):
        return "parameters"
    for pattern in (r"\A# *(?!NBVAL)([A-Za-z].+)$", r"^(?:def|class) +(\w+)"):
        if found := re.search(pattern, cell.source, re.M):
            return slug(found.group(1))
    return f"{heading}-code"


def good_id(name: str) -> bool:
    return bool(GOOD_ID.fullmatch(name)) and len(name) <= 64 and not RANDOM_ID.fullmatch(name)


def fix_ids(notebook: NotebookNode) -> Iterator[str]:
    heading, used = "start", set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := re.search(r"^#+ +(.+)$", cell.source, re.M)):
            heading = slug(found.group(1), 24) or heading
        old = cell.get("id", "")
        if not good_id(old) or old in used:
            base = name_cell(cell, heading)
            base = new = base if good_id(base) else f"{heading}-cell"
            number = 2
            while new in used:
                new, number = f"{base}-{number}", number + 1
            yield f"cell id {old!r} is not a unique descriptive name (--fix makes it {new!r})"
            cell["id"] = new
        used.add(cell["id"])


def fix_metadata(notebook: NotebookNode) -> Iterator[str]:
    if notebook.metadata != METADATA:
        extra = ", ".join(sorted(set(notebook.metadata) - set(METADATA))) or "another kernel or language"
        yield f"notebook metadata: {extra}"
        notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in ("jupyter", "tags") if cell.metadata.get(key)}
        if cell.metadata != kept:
            yield f"cell {cell.id}: metadata {', '.join(sorted(set(cell.metadata) - set(kept)))}"
            cell.metadata = nbformat.from_dict(kept)


def fix_counts(notebook: NotebookNode) -> Iterator[str]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count is not None]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        yield "execution counts are not 1, 2, 3 ..."
    for count, cell in enumerate(cells, 1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def fix_outputs(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        outputs: list[NotebookNode] = []
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                yield f"cell {cell.id}: stderr: {output.text.strip()[:80]!r}"
                continue
            if any("widget" in kind for kind in output.get("data", {})):
                yield f"cell {cell.id}: a widget, which a saved notebook cannot show"
                continue
            if output.output_type == "stream" and outputs and outputs[-1].get("name") == output.name:
                yield f"cell {cell.id}: its printed text is in pieces"
                outputs[-1].text += output.text
                continue
            outputs.append(output)
        for output in outputs:
            if output.output_type == "stream" and re.search(r"[\b]|\r(?!\n)", output.text):
                yield f"cell {cell.id}: a progress bar was saved"
                output.text = re.sub(r"[^\n]*\r(?!\n)", "", output.text).replace("\b", "")
            for holder, key in texts(output):
                short = holder[key].replace(f"{ROOT}/", "").replace(str(Path.home()) + "/", "~/")
                if short != holder[key]:
                    yield f"cell {cell.id}: an absolute path"
                    holder[key] = short
        if cell.cell_type == "code":
            cell.outputs = outputs


def texts(output: NotebookNode) -> Iterator[tuple[NotebookNode, str]]:
    """The places in an output where text is, as (dict, key)."""
    if output.output_type == "stream":
        yield output, "text"
    for kind in TEXT_TYPES:
        if kind in output.get("data", {}):
            yield output.data, kind


def unmendable(notebook: NotebookNode, size: int) -> Iterator[str]:
    """What only the author can put right."""
    for cell in notebook.cells:
        if not cell.source.strip():
            yield f"cell {cell.id}: empty"
        if path := MACHINE_PATH.search(cell.source):
            yield f"cell {cell.id}: path of one machine: {path.group()}"
        if bad := {"raises-exception", "injected-parameters"} & set(cell.metadata.get("tags", [])):
            yield f"cell {cell.id}: tag {', '.join(bad)} (papermill does not honour it; catch the error and show it)"
        if cell.cell_type != "code":
            continue
        if cell.execution_count is None and cell.source.strip():
            yield f"cell {cell.id}: not executed (make notebooks)"
        for output in cell.outputs:
            if output.output_type == "error":
                yield f"cell {cell.id}: {output.ename} (catch intended errors and show them short)"
            for holder, key in texts(output):
                if path := MACHINE_PATH.search(holder[key]):
                    yield f"cell {cell.id}: path of one machine in the output: {path.group()}"
            for kind, data in output.get("data", {}).items():
                if kind.startswith("image/") and kind != "image/svg+xml":
                    figure = len(base64.b64decode(data))
                    if figure > FIGURE_LIMIT:
                        yield f"cell {cell.id}: figure of {figure / 1000:.0f} KB, limit {FIGURE_LIMIT // 1000} KB"
    if size > NOTEBOOK_LIMIT:
        yield f"{size / 1000:.0f} KB, limit {NOTEBOOK_LIMIT // 1000} KB"


def tidied(text: str) -> tuple[str, list[str], list[str]]:
    """(canonical text, what was mended, what could not be). Tidying twice is the same as once."""
    # Older formats have no cell ids; nbformat would invent random ones, with a warning.
    notebook = nbformat.reads(text, as_version=4, capture_validation_error={})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    mended = [note for step in (fix_ids, fix_metadata, fix_counts, fix_outputs) for note in step(notebook)]
    nbformat.validate(notebook)
    result = nbformat.writes(notebook, version=4).rstrip("\n") + "\n"
    if result != text and not mended:
        mended.append("JSON is not as nbformat writes it (order, indent, escapes or the last line)")
    return result, mended, list(unmendable(notebook, len(result.encode())))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="only say what is wrong")
    mode.add_argument("--fix", action="store_true", help="mend what can be mended, in place")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all that are committed")
    options = parser.parse_args(arguments)
    paths = options.notebooks or [path for folder in FOLDERS for path in sorted(folder.glob("*.ipynb"))]
    if not paths:
        parser.error("no notebooks found")

    bad = 0
    for path in paths:
        name = os.path.relpath(path)
        try:
            text = path.read_text(encoding="utf-8")
            result, mended, left = tidied(text)
        except (OSError, ValueError, nbformat.ValidationError) as error:
            print(f"{name}: unreadable: {str(error).splitlines()[0]}")
            bad += 1
            continue
        if options.fix and result != text:
            scratch = path.with_suffix(".ipynb.tmp")
            scratch.write_text(result, encoding="utf-8")
            os.replace(scratch, path)
            print(f"{name}: mended ({len(mended)})")
        for note in left if options.fix else mended + left:
            print(f"{name}: {note}")
        bad += bool(left or (mended and not options.fix))
    if bad and options.check:
        print("`python tools/nbtidy.py --fix` mends what can be mended.")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
