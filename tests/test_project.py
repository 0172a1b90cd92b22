"""What surrounds the code: environments agree, the README's commands exist, links resolve, CI runs what it says."""

import ast
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import setup_env
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "docs/teaching.md", "docs/where_to_run.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text()


def command(*arguments) -> subprocess.CompletedProcess:
    # The suite itself runs under `make test`: a make inside it must not take itself for a part of that one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=environment)


# ---- dependencies ------------------------------------------------------------------------------------------------


def toml_list(name: str) -> list[Requirement]:
    """A list of requirements from pyproject.toml. Python 3.10 has no tomllib, and this file's lists are plain."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^{name} = (\[.*?^\])", text, re.M | re.S)
    return [Requirement(item) for item in ast.literal_eval(found.group(1))]


def conda_environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def conda_requirements() -> dict[str, Requirement]:
    """Every package of environment.yml by name, from conda's part and from pip's. `-e .` is left out."""
    *plain, last = conda_environment()["dependencies"]
    assert set(last) == {"pip"}
    # conda's `python=3.11` is pip's `python==3.11.*`; the other forms are the same.
    plain = [re.sub(r"^([\w-]+)=([\d.]+)$", r"\1==\2.*", line) for line in plain]
    listed = [Requirement(line) for line in plain + [line for line in last["pip"] if line != "-e ."]]
    assert "-e ." in last["pip"]
    assert len({item.name for item in listed}) == len(listed)
    return {item.name: item for item in listed}


def test_environment_has_only_known_keys():
    environment = conda_environment()
    assert set(environment) <= {"name", "channels", "dependencies", "variables", "prefix"}
    assert environment["channels"][0] == "conda-forge"
    assert environment["name"] == "npugraph-course"


def test_environment_agrees_with_pyproject():
    conda = conda_requirements()
    wanted = toml_list("dependencies") + toml_list("npu") + toml_list("test") + toml_list("real")
    for need in wanted:
        assert need.name in conda, f"environment.yml lacks {need.name}"
        assert conda[need.name].specifier == need.specifier, need.name
        assert str(conda[need.name].marker).replace("'", '"') == str(need.marker).replace("'", '"'), need.name
    assert set(conda) - {need.name for need in wanted} == {"python", "pip", "cxx-compiler", "make"}
    text = (ROOT / "pyproject.toml").read_text()
    supported = SpecifierSet(re.search(r'requires-python = "(.+)"', text).group(1))
    assert next(iter(conda["python"].specifier)).version.removesuffix(".*") in supported


def test_environment_explains_each_package():
    lines = [line for line in (ROOT / "environment.yml").read_text().splitlines() if re.match(r" +- (?!pip:)", line)]
    packages = lines[lines.index("  - nodefaults") + 1 :]
    assert [line for line in packages if "  # " not in line] == []


def test_environment_names_what_the_course_is_about():
    assert {"torch", "torch_npu", "numpy", "matplotlib", "jupyterlab", "papermill", "nbval"} <= set(
        conda_requirements()
    )


def test_torch_is_only_in_the_extra():
    """A vendor image has its own torch, which must not be installed again."""
    always = toml_list("dependencies") + toml_list("test") + toml_list("real")
    assert not {"torch", "torch_npu"} & {need.name for need in always}
    torch, torch_npu = toml_list("npu")
    assert torch.specifier == torch_npu.specifier and str(torch.specifier).startswith("==")
    assert torch_npu.marker and not torch.marker


def test_what_is_installed_fits():
    for need in toml_list("dependencies") + toml_list("test") + toml_list("real"):
        assert Version(importlib.metadata.version(need.name)) in need.specifier, need
    # The pins of the extra hold where the extra was installed; a vendor image brings its own pair.
    asked = next(
        Requirement(line) for line in importlib.metadata.requires("torch_npu") if Requirement(line).name == "torch"
    )
    assert Version(importlib.metadata.version("torch")) in asked.specifier


def test_wheel_carries_its_data(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    result = command(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--disable-pip-version-check", "-w", str(tmp_path / "dist"), str(tmp_path)),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    data = [*source.glob("ascend_sim/csrc/**/*"), *source.glob("helpers/data/**/*"), *source.glob("*/*.py")]
    assert {str(path.relative_to(source)) for path in data if path.is_file()} <= packed


# ---- what the pages say ------------------------------------------------------------------------------------------


def code_of(page: str) -> list[str]:
    """The lines of code blocks, and the inline code, of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S)
    rest = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    lines = [re.sub(r"\s#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return lines + [span.replace("\\|", "|") for span in re.findall(r"`([^`]+)`", rest)]


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    targets = set(re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.M).group(1).split())
    named = {name for line in code_of(page) for name in re.findall(r"\bmake (?:\S+=\S+ )*([a-z]+)\b", line)}
    assert named and named <= targets
    listed = command("make", "help").stdout
    assert {line.split()[1] for line in listed.splitlines()} == targets
    for target in targets:
        assert command("make", "-n", target).returncode == 0, target


def test_python_commands_exist():
    """Each subcommand and option in the pages is known to the command's own help."""
    asked: dict[tuple, set] = {}
    for page in PAGES:
        for line in code_of(page):
            for found in re.finditer(
                r"python(?:3)? (-m (?:helpers|ascend_sim)|(?:tools|benchmarks)/\w+\.py)([^|;&]*)", line
            ):
                words = found.group(2).split()
                subcommand = (words[0],) if "helpers" in found.group(1) and words else ()
                options = {word for word in words if word.startswith("-")}
                asked.setdefault((*found.group(1).split(), *subcommand), set()).update(options)
    assert {key[2] for key in asked if key[:2] == ("-m", "helpers")} == {"doctor", "run", "compare", "check", "submit"}
    for words, options in asked.items():
        if words[-1].endswith(".py"):
            assert (ROOT / words[-1]).is_file(), words
        if words == ("-m", "ascend_sim"):
            assert importlib.util.find_spec("ascend_sim.__main__"), "python -m ascend_sim does not work"
            continue
        result = command(sys.executable, *words, "--help") if options or words[0] == "-m" else None
        assert result is None or result.returncode == 0, result.stderr
        for option in options:
            assert re.search(rf"(?<![\w-]){re.escape(option)}\b", result.stdout), f"{' '.join(words)} has no {option}"


def anchors(page: Path) -> set[str]:
    """The anchors that a code host makes from a page's headings."""
    headings = re.findall(r"^#+ +(.+?) *$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text)
    for target in targets:
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        assert path.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(path), f"{page}: {target}"


def test_pictures_have_a_description():
    pictures = re.findall(r"!\[([^\]]*)\]\(", README)
    assert pictures and all(len(text) > 20 for text in pictures)


def test_readme_lists_the_notebooks():
    """Title, minutes and order, as in the notebooks themselves."""
    import nbformat

    rows = re.findall(r"^\| (\d+) \| \[(.+?)\]\(notebooks/(.+?)\) \|.*\| (\d+) \| no \|$", README, re.M)
    found = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    assert [row[2] for row in rows] == found
    for number, title, name, minutes in rows:
        assert name.startswith(f"{int(number):02}_")
        opening = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells[0].source
        heading = re.match(r"# (?:\d+[.:] )?(.+)", opening).group(1).strip()
        assert (heading, f"{minutes} minutes" in opening) == (title, True), name


def test_readme_has_the_columns_of_the_benchmark():
    source = (ROOT / "benchmarks" / "replay.py").read_text()
    headings = re.findall(r'^    \("(.+?)", \d+, lambda', source, re.M)
    assert len(headings) > 5 and f"| {' | '.join(headings)} |" in README.splitlines()


def test_readme_is_filled_in():
    waiting = README.count("FILL")
    assert waiting == 0, "the table of results still waits for its numbers"


# ---- what is in the repository -----------------------------------------------------------------------------------


def project_files() -> list[Path]:
    """Tracked and new files; without git, all but what `make` makes."""
    listed = command("git", "ls-files", "-co", "--exclude-standard", "-z") if (ROOT / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        made = {".venv", "build", "__pycache__", ".git"}
        files = [path for path in ROOT.rglob("*") if not made & set(path.relative_to(ROOT).parts)]
    return [path for path in files if path.is_file()]


def test_no_package_hosts_and_no_paths_of_one_machine():
    hosts = ["py" + "pi.org", "python" + "hosted", "download" + ".pytorch", "tuna" + ".tsinghua", "mirrors" + "."]
    folders = "|".join(["home", "root", "work", "tmp", "Users"])
    wanted = re.compile(rf"(?<![\w.~/)}}\"'])/(?:{folders})/\w|" + "|".join(map(re.escape, hosts)))
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if match := wanted.search(line[:5000]):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert found == []


def test_python_style():
    result = command(sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", ".")
    assert result.returncode == 0, result.stdout + result.stderr


def test_licence():
    text = (ROOT / "LICENSE").read_text()
    assert text.startswith("BSD 3-Clause License") and "Copyright (c) 2026, the NPUGraph course authors" in text
    assert 'license = "BSD-3-Clause"' in (ROOT / "pyproject.toml").read_text()


# ---- CI and set-up -----------------------------------------------------------------------------------------------


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert command("bash", "-n", str(script)).returncode == 0
    lines = [line.strip() for line in script.read_text().splitlines()]
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make ")] == ['make test 2>&1 | tee "$log" || status=$?']


def test_workflow_runs_the_same():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert steps == ["bash .ci/run"]


@pytest.fixture
def said(capsys):
    """Run a check of the set-up that stops: its exit code, and the one line that it says."""

    def run(check):
        with pytest.raises(SystemExit) as stop:
            check()
        (line,) = capsys.readouterr().err.splitlines()
        return stop.value.code, line

    return run


def test_setup_names_a_missing_compiler(said, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    code, line = said(setup_env.check_compiler)
    assert code == 2 and "package g++" in line
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    code, line = said(setup_env.check_compiler)
    assert code == 2 and line.endswith("no-such-compiler")


def test_setup_names_a_missing_venv(said, monkeypatch):
    monkeypatch.setattr(setup_env.importlib.util, "find_spec", lambda name: None)
    code, line = said(setup_env.check_python)
    assert code == 2 and re.search(r"package python3\.\d+-venv$", line)


@pytest.mark.parametrize("version", [(3, 9, 18), (3, 15, 0)])
def test_setup_names_a_python_that_does_not_fit(said, monkeypatch, version):
    monkeypatch.setattr(setup_env.sys, "version_info", version)
    monkeypatch.setenv("PYTHON", "python3")
    code, line = said(setup_env.check_python)
    assert code == 2 and "Python 3.10 to 3.14 is needed" in line and "python3.11-venv" in line


def test_setup_takes_another_python_that_fits(monkeypatch):
    calls = []
    monkeypatch.setattr(setup_env.sys, "version_info", (3, 9, 18))
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(setup_env.shutil, "which", lambda name: f"bin/{name}")
    monkeypatch.setattr(setup_env.subprocess, "call", lambda command, **_: "3.11" in command[0])  # a shim that fails
    monkeypatch.setattr(setup_env.os, "execve", lambda path, *_: calls.append(path) or sys.exit(0))
    with pytest.raises(SystemExit):
        setup_env.check_python()
    assert calls == ["bin/python3.12"]


def test_setup_says_that_it_needs_linux(said, monkeypatch):
    monkeypatch.setattr(setup_env.sys, "platform", "darwin")
    code, line = said(setup_env.check_python)
    assert code == 2 and "Linux container" in line


def test_setup_leaves_a_vendor_pair_alone(monkeypatch):
    """Only where torch, torch_npu and CANN are all there."""
    versions = {"torch": "2.9.0", "torch_npu": "2.9.0"}

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    def no_cann(name):
        raise OSError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    assert setup_env.own_torch() == versions
    monkeypatch.setattr(ctypes, "CDLL", no_cann)
    assert setup_env.own_torch() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    del versions["torch_npu"]
    assert setup_env.own_torch() is None


def test_setup_keeps_jupyterlab_from_asking_about_news(monkeypatch, tmp_path):
    import jupyter_core.paths
    from jupyterlab_server.settings_handler import get_settings

    monkeypatch.setattr(setup_env, "VENV", tmp_path)
    setup_env.quiet_lab()
    monkeypatch.setattr(jupyter_core.paths, "ENV_CONFIG_PATH", [])
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path / "etc" / "jupyter"))
    lab = Path(sys.prefix) / "share" / "jupyter" / "lab"
    settings, _ = get_settings(
        str(lab), str(lab / "schemas"), str(tmp_path), "@jupyterlab/apputils-extension:notification"
    )
    assert settings["schema"]["properties"]["fetchNews"]["default"] == "false"


def test_setup_says_when_cann_is_gone(said, monkeypatch, tmp_path):
    """A `.venv` that shares the vendor's packages is kept, not replaced by gigabytes, when set_env.sh was forgotten."""
    monkeypatch.setattr(setup_env, "VENV", tmp_path)
    monkeypatch.setattr(setup_env, "check_python", lambda: None)
    monkeypatch.setattr(setup_env, "check_compiler", lambda: None)
    monkeypatch.setattr(setup_env, "own_torch", lambda: None)
    (tmp_path / ".base").write_text('{"own_torch": {"torch": "2.9.0", "torch_npu": "2.9.0"}}')
    code, line = said(setup_env.main)
    assert code == 2 and "set_env.sh" in line
