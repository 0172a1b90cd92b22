"""JupyterLab in a browser, as a learner has it: the notebooks run there, pictures show, sliders work by keyboard.

One server and one headless Chromium for the whole file, each with files of its own in a temporary folder. Where there
is no Chromium the tests are skipped; CI sets NPUGRAPH_NEED_BROWSER, and then that is a failure.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import run_notebooks
from course import ROOT, cells, load
from processes import UNSET
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

pytestmark = pytest.mark.notebook
STEM = "05_plot_the_results"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
PATIENCE = 60  # seconds: a slow machine is no failure
# Asked of the page, in JavaScript.
PROMPTS = "return [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent)"
PICTURES = "return [...document.querySelectorAll('.jp-OutputArea img')].map(e => [e.naturalWidth, e.src])"
ERRORS = "return document.querySelectorAll('[data-mime-type=\"application/vnd.jupyter.error\"]').length"
FOCUSED = "return document.activeElement.closest('.widget-inline-hbox')?.querySelector('label')?.textContent"
BESIDE = "return arguments[0].closest('.jp-OutputArea').querySelector('img').src"  # of the status line


class Lab:
    """JupyterLab in a process of its own, without a token, at a free port of this machine alone."""

    def __init__(self, folder: Path):
        self.folder, self.course = folder, folder / "course"
        self.ran = False  # the notebook with the sliders
        for name in ("notebooks", "results"):
            shutil.copytree(ROOT / name, self.course / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        (self.course / "build").mkdir()
        (self.course / "docs").mkdir()
        shutil.copy(ROOT / "docs" / "results.png", self.course / "docs")
        settings = folder / "config/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text('{"fetchNews": "false"}')  # as tools/setup_env.py has it: nobody is asked about news
        environment = {name: value for name, value in os.environ.items() if name not in UNSET}
        environment |= {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")}
        environment["IPYTHONDIR"] = str(folder / "ipython")
        options = [
            "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--IdentityProvider.token=",
            f"--ServerApp.root_dir={self.course}", "--LabApp.news_url=None", "--LabApp.extension_manager=readonly",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            *(["--allow-root"] if os.getuid() == 0 else []),
        ]  # fmt: skip
        self.log = folder / "jupyterlab.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options], env=environment, cwd=folder, stdout=log, stderr=log
            )

    def started(self) -> str:
        """Its address, once it answers."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            for file in (self.folder / "runtime").glob("jpserver-*.json"):
                try:
                    self.url = json.loads(file.read_text())["url"]
                    self.kernels()
                    return self.url
                except (OSError, ValueError):  # not whole yet, or nobody listens yet
                    pass
            time.sleep(0.1)
        pytest.fail(f"JupyterLab did not start: {self.log.read_text()[-2000:]}", pytrace=False)

    def kernels(self) -> list[str]:
        """The state of each kernel, such as idle."""
        with urllib.request.urlopen(f"{self.url}api/kernels", timeout=5) as answer:
            return [kernel["execution_state"] for kernel in json.load(answer)]

    def stop(self):
        self.process.terminate()  # it ends its kernels
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def browser(folder: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in ("--headless=new", "--window-size=1400,1000", "--disable-dev-shm-usage", f"--user-data-dir={folder}"):
        options.add_argument(option)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses to start for root with one
    return webdriver.Chrome(options, webdriver.ChromeService(DRIVER))


class Page:
    """What a learner does and sees. Waits for what it looks for."""

    def __init__(self, driver: webdriver.Chrome, lab: Lab):
        self.driver, self.lab = driver, lab

    def until(self, condition, what: str):
        """What ``condition()`` gives, once that is true. JupyterLab may replace an element while it is looked at."""
        wait = WebDriverWait(self.driver, PATIENCE, 0.1, [StaleElementReferenceException])
        return wait.until(lambda _: condition(), f"waited for {what}")

    def find(self, css: str, text: str = "", click: bool = False):
        """The first visible element with a text that begins so, clicked if asked for."""

        def found():
            for element in self.driver.find_elements(By.CSS_SELECTOR, css):
                if element.is_displayed() and element.text.strip().startswith(text):
                    if click:
                        element.click()
                    return element

        return self.until(found, f"{css} {text}")

    def open(self, name: str):
        self.driver.get(f"{self.lab.url}lab/tree/notebooks/{name}?reset")
        self.find(".jp-NotebookPanel .jp-Cell")

    def menu(self, *items: str):
        for css, item in zip((".lm-MenuBar-itemLabel", ".lm-Menu-itemLabel"), items, strict=True):
            self.find(css, item, click=True)

    def ask(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def press(self, key: str):
        ActionChains(self.driver).send_keys(key).perform()

    def focused(self) -> str:
        """The label of the widget that has the keyboard."""
        return self.ask(FOCUSED)

    def prompts(self) -> list[str]:
        return self.ask(PROMPTS)


@pytest.fixture(scope="module")
def lab_and_browser(tmp_path_factory):
    missing = [name for name, path in (("chromium", CHROMIUM), ("chromium-driver", DRIVER)) if not path]
    if missing:
        reason = f"no browser: install {' and '.join(missing)}"
        if os.environ.get("NPUGRAPH_NEED_BROWSER"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    run_notebooks.prepare_device()
    folder = tmp_path_factory.mktemp("lab")
    with ExitStack() as ending:
        lab = Lab(folder)
        ending.callback(lab.stop)
        driver = browser(folder / "chromium")  # while the server starts
        ending.callback(driver.quit)
        lab.started()
        yield lab, driver


@pytest.fixture
def page(lab_and_browser, request):
    lab, driver = lab_and_browser
    failed = request.session.testsfailed
    yield Page(driver, lab)
    if request.session.testsfailed > failed:
        picture = ROOT / "build" / f"{request.node.name}.png"
        picture.parent.mkdir(exist_ok=True)
        driver.save_screenshot(str(picture))
        print(f"what the browser showed: {picture.relative_to(ROOT)}")


@pytest.fixture
def ran(page):
    """The notebook with the sliders, cleared, then restarted and run, all from the menus. Once for all tests."""
    lab = page.lab
    if lab.ran:
        return
    page.open(f"{STEM}.ipynb")
    count = len(cells(load(STEM), "code"))
    page.menu("Edit", "Clear Outputs of All Cells")
    page.until(lambda: page.prompts() == ["[ ]:"] * count and not page.ask(PICTURES), "no outputs")
    page.menu("Run", "Restart Kernel and Run All Cells")
    page.find(".jp-Dialog .jp-mod-accept", click=True)
    page.until(lambda: page.prompts() == [f"[{i + 1}]:" for i in range(count)], "an execution count of every cell")
    page.until(lambda: lab.kernels() == ["idle"], "an idle kernel")
    lab.ran = True


def test_notebook_runs_and_shows_its_pictures(ran, page):
    assert page.ask(ERRORS) == 0
    saved = [o for cell in cells(load(STEM), "code") for o in cell.outputs if "image/png" in o.get("data", {})]
    pictures = page.until(lambda: len(found := page.ask(PICTURES)) >= len(saved) and found, "the pictures")
    assert len(pictures) == len(saved) and all(width > 0 for width, _ in pictures)


def test_sliders_work_by_keyboard(ran, page):
    status = page.find(".explore-status")
    assert status.text.startswith("64×16×1: ") and "speed-up" in status.text
    handles = page.driver.find_elements(By.CSS_SELECTOR, ".jp-OutputArea .noUi-handle")
    assert len(handles) == 3 and all(handle.is_displayed() for handle in handles)
    first = page.ask(BESIDE, status)

    page.ask("arguments[0].focus()", handles[0])
    assert page.focused() == "width 64"
    page.press(Keys.ARROW_LEFT)
    page.until(lambda: status.text.startswith("32×16×1: "), "the line of the new size")
    second = page.until(lambda: (src := page.ask(BESIDE, status)) != first and src, "another picture")
    order = [page.focused()]
    for _ in range(3):
        page.press(Keys.TAB)
        order.append(page.focused())
    assert order == ["width 32", "tokens 16", "batch 1", "clock"]

    page.press("p")  # the clock: paced
    page.until(lambda: "modelled, outputs not computed" in status.text, "the line of the paced clock")
    page.until(lambda: page.ask(BESIDE, status) != second, "the picture of the paced clock")


def test_front_page_leads_to_the_first_notebook(page):
    page.open("index.ipynb")
    page.find(".jp-RenderedMarkdown a", "notebook 1", click=True)
    first = load("01_set_up_environment").cells[0].source.splitlines()[0].lstrip("# ")
    page.find(".jp-RenderedMarkdown h1", first)
