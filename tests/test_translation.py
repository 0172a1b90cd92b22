"""README.md and README.zh-CN.md say the same: all but the words is compared, part by part, so neither drifts alone."""

import re
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
# The line under the title, by which a reader changes the language.
SWITCH = {
    ENGLISH: f"English | [简体中文]({CHINESE})",
    CHINESE: f"[English]({ENGLISH}) | 简体中文",
}
# Cells that are an answer, or begin with one.
ANSWERS = {"yes": "是有", "no": "否无", "real": "真", "simulated": "模"}


# ---- a page, taken apart -----------------------------------------------------------------------------------------


def parts_of(text: str) -> list[tuple[str, int, list[str]]]:
    """The parts of a page in order: kind (`h1` to `h6`, code, table, item, text), number of its line, its lines."""
    parts, fence, joins = [], False, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            if not fence:
                parts.append(("code", number, []))
            fence = not fence
            parts[-1][2].append(line)
            joins = False
        elif fence:
            parts[-1][2].append(line)
        elif not line.strip():
            joins = False
        elif found := re.match(r"(#{1,6}) ", line):
            parts.append((f"h{len(found.group(1))}", number, [line]))
            joins = False
        else:
            starts = re.match(r" *(?:[-*+]|\d+\.) ", line)
            kind = "table" if line.startswith("|") else "item" if starts else "text"
            if starts or not joins or (kind == "table") != (parts[-1][0] == "table"):
                parts.append((kind, number, []))
            parts[-1][2].append(line)
            joins = True
    return parts


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def facts(text: str) -> dict[str, Counter]:
    """What a translation keeps of a paragraph or a cell. Its order may change, since the languages differ in theirs."""
    code = re.findall(r"`([^`]+)`", text)
    text = re.sub(r"`[^`]+`", "`", text)
    links = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)
    pictures = re.findall(r"!\[", text)
    text = re.sub(r"\]\([^)\s]+\)", "]", text)
    numbers = [word.strip(".+-") for word in re.findall(r"[A-Za-z0-9.+-]*[0-9][A-Za-z0-9.+-]*", text)]
    # Names are words with a capital letter within, or an underscore: CANN, PyTorch, max_abs. Each counts once, since a
    # language repeats a name where the other has a pronoun. A plural is the same name; GB may be written out.
    words = {re.sub(r"(?<=[A-Z])s$", "", word) for word in re.findall(r"[A-Za-z_]+", text)}
    names = {word for word in words if re.search(r"[A-Za-z][A-Z]|_", word)} - {"GB"}
    strong = re.findall(r"\*\*[^*]+\*\*", text)
    slanted = re.findall(r"(?<!\*)\*[^*\s][^*]*\*(?!\*)", text)
    return {
        "code": Counter(code),
        "links": Counter(links),
        "pictures": Counter(pictures),
        "numbers": Counter(numbers),
        "names": Counter(names),
        "emphasis": Counter({"**": len(strong), "*": len(slanted)}),
    }


# ---- two pages, compared -----------------------------------------------------------------------------------------


def compare_facts(where: str, english: str, chinese: str) -> list[str]:
    found, theirs = [], facts(chinese)
    for what, ours in facts(english).items():
        if ours != theirs[what]:
            differences = {"lacks": ours - theirs[what], "has in excess": theirs[what] - ours}
            said = [f"{verb} {', '.join(sorted(more.elements()))}" for verb, more in differences.items() if more]
            found.append(f"{where}: {what}: {CHINESE} {' and '.join(said)}")
    return found


def compare_tables(section: str, line: int, english: list[str], their_line: int, chinese: list[str]) -> list[str]:
    where = f"{section}, table at {ENGLISH}:{line} and {CHINESE}:{their_line}"
    if len(english) != len(chinese):
        keys = [[facts(cells(row)[0]) for row in rows] for rows in (english, chinese)]
        first = next(at for at, (our, their) in enumerate(zip_longest(*keys)) if our != their)
        rows = [rows[first] if first < len(rows) else "no row" for rows in (english, chinese)]
        count = f"{len(english)} rows in {ENGLISH}, {len(chinese)} in {CHINESE}"
        return [f"{where}: {count}; the first that differ are {rows[0]!r} and {rows[1]!r}"]
    found = []
    for row, lines in enumerate(zip(english, chinese, strict=True)):
        ours, theirs = map(cells, lines)
        where = f"{section}, table row at {ENGLISH}:{line + row} and {CHINESE}:{their_line + row}"
        if len(ours) != len(theirs):
            found.append(f"{where}: {len(ours)} columns in {ENGLISH}, {len(theirs)} in {CHINESE}")
            continue
        for column, (our, their) in enumerate(zip(ours, theirs, strict=True), 1):
            here = f"{where}, column {column}"
            found += compare_facts(here, our, their)
            if bool(our) != bool(their):
                found.append(f"{here}: empty in one page only")
            answer = re.match(r"(\w+)(?=$|[;:,])", our)
            if answer and answer.group(1) in ANSWERS and their[:1] not in [*ANSWERS[answer.group(1)]]:
                found.append(f"{here}: {our!r} in {ENGLISH}, {their!r} in {CHINESE}")
    return found


def outline(parts, of=r"h\d") -> list[str]:
    return [kind for kind, _, _ in parts if re.fullmatch(of, kind)]


def sections(parts) -> list[tuple[str, list]]:
    """Heading and parts of each section; what stands before the first heading has an empty one."""
    found = [("", [])]
    for part in parts:
        if part[0].startswith("h"):
            found.append((part[2][0].lstrip("# "), []))
        else:
            found[-1][1].append(part)
    return found


def drift(english: str, chinese: str) -> list[str]:
    """Where the Chinese page differs from the English one in more than words. Each line names the part."""
    found = [
        f"{page}: its third line is not the switch: {SWITCH[page]}"
        for page, text in ((ENGLISH, english), (CHINESE, chinese))
        if text.splitlines()[2:3] != [SWITCH[page]]
    ]
    both = [
        [part for part in parts_of(text) if part[2] != [SWITCH[page]]]
        for page, text in ((ENGLISH, english), (CHINESE, chinese))
    ]
    if outline(both[0]) != outline(both[1]):
        headings = [[(kind, lines[0]) for kind, _, lines in parts if kind.startswith("h")] for parts in both]
        for ours, theirs in zip_longest(*headings, fillvalue=("", "no heading")):
            if ours[0] != theirs[0]:
                found.append(f"headings: {ours[1]!r} in {ENGLISH} stands beside {theirs[1]!r} in {CHINESE}")
                break
        return found  # their sections can't be paired
    for (heading, ours), (title, theirs) in zip(*map(sections, both), strict=True):
        section = f"section {heading!r} ({title})"
        found += compare_facts(f"{section}, its heading", heading, title)
        kinds = [outline(parts, ".*") for parts in (ours, theirs)]
        if kinds[0] != kinds[1]:
            found.append(f"{section}: parts in {ENGLISH} are {kinds[0]}, in {CHINESE} {kinds[1]}")
            continue
        for (kind, line, our), (_, their_line, their) in zip(ours, theirs, strict=True):
            where = f"{section}, {kind} at {ENGLISH}:{line} and {CHINESE}:{their_line}"
            if kind == "code":
                if our != their:
                    changed = [pair for pair in zip(our, their, strict=False) if pair[0] != pair[1]]
                    found.append(f"{where}: {len(our)} and {len(their)} lines, first that differ: {changed[:1]}")
            elif kind == "table":
                found += compare_tables(section, line, our, their_line, their)
            else:
                found += compare_facts(where, "\n".join(our), "\n".join(their))
    return found


def test_readmes_agree():
    english, chinese = ((ROOT / page).read_text(encoding="utf-8") for page in (ENGLISH, CHINESE))
    assert len(outline(parts_of(english))) > 5 and "table" in outline(parts_of(english), ".*")  # something is compared
    found = drift(english, chinese)
    assert not found, "\n" + "\n".join(found)


def test_chinese_readme_is_chinese():
    """Each heading and paragraph is translated, and its emphasis shows: Markdown takes `**是。**它` for plain text."""
    for kind, number, lines in parts_of((ROOT / CHINESE).read_text(encoding="utf-8")):
        if kind not in ("code", "table"):
            assert re.search(r"[\u4e00-\u9fff]", "".join(lines)), f"{CHINESE}:{number}"
            assert len(lines) == 1, f"{CHINESE}:{number}: a line break within Chinese text shows as a space"
        text = re.sub(r"`[^`]+`", "", "\n".join(lines)) if kind != "code" else ""
        for _, inside in re.findall(r"(\*\*?)([^*]+)\1", text):
            assert re.match(r"\w", inside) and re.search(r"\w$", inside), f"{CHINESE}:{number}: emphasis {inside!r}"


# ---- the comparison itself ---------------------------------------------------------------------------------------

SMALL_ENGLISH = f"""# Title

{SWITCH[ENGLISH]}

A *replay* of PyTorch takes 2.5 ms with `make run`, see [this](docs/a.md).

## Table

| name | value | needs an NPU? |
|---|---|---|
| `x \\| y` | 3 of CANN's | no |

```bash
make run  # it
```
"""
SMALL_CHINESE = f"""# 标题

{SWITCH[CHINESE]}

见[此处](docs/a.md)：用 `make run` 时，PyTorch 的一次*重放*耗时 2.5 毫秒。

## 表

| 名称 | 值 | 需要 NPU 吗？ |
|---|---|---|
| `x \\| y` | CANN 的 3 个 | 否 |

```bash
make run  # it
```
"""


def test_comparison_passes_a_translation():
    assert drift(SMALL_ENGLISH, SMALL_CHINESE) == []


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("2.5 毫秒", "2.6 毫秒", "text at README.md:5 and README.zh-CN.md:5: numbers: .* lacks 2.5 .* 2.6"),
        ("`make run` 时", "`make lab` 时", "code: .* lacks make run and has in excess make lab"),
        ("(docs/a.md)", "(docs/b.md)", "links: .* lacks docs/a.md"),
        ("PyTorch", "框架", "names: .* lacks PyTorch"),
        ("*重放*", "重放", r"emphasis: .* lacks \*"),
        ("毫秒。\n", "毫秒。\n\n更多。\n", r"section 'Title' \(标题\): parts"),
        ("## 表", "### 表", "headings: '## Table' in README.md stands beside '### 表'"),
        ("## 表", "## 表\n\n## 又", "headings: 'no heading' in README.md stands beside '## 又'"),
        ("的 3 个", "的 4 个", "row at README.md:11 and README.zh-CN.md:11, column 2: numbers: .* lacks 3"),
        ("x \\| y", "x \\| z", "row at .*, column 1: code"),
        ("| 否 |", "| 是 |", "row at .*, column 3: 'no' in README.md"),
        ("| 否 |", "| 否 | 1 |", "row at .*: 3 columns in README.md, 4 in"),
        (
            "|---|---|---|\n",
            "|---|---|---|\n| 1 | 2 | 3 |\n",
            r"3 rows in README.md, 4 in .*; the first that differ are .*CANN.* '\| 1",
        ),
        ("# it", "# 它", "code at README.md:13 and README.zh-CN.md:13"),
        ("make run  # it", "make run  # it\nmake lab", "3 and 4 lines"),
        ("[English]", "[Englisch]", "README.zh-CN.md: its third line is not the switch"),
    ],
)
def test_comparison_sees(old, new, says):
    assert SMALL_CHINESE.count(old) == 1
    assert re.search(says, "\n".join(drift(SMALL_ENGLISH, SMALL_CHINESE.replace(old, new))))
