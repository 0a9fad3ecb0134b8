import re
import subprocess
import sys

import pytest
from docs.make_reference import FOLDER, pages

from pairstill.cli.main import COMMANDS
from pairstill.methods import METHODS
from tests.conftest import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").glob("*.md")]
PROSE = [*PAGES, ROOT / "benchmarks/README.md"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    methods = (tmp_path / "site/explanation/methods/index.html").read_text()
    assert "<math" in methods and "\\frac" not in methods  # every formula was understood
    assert 'id="pairstill.api.distill"' in (tmp_path / "site/reference/api/index.html").read_text()


@pytest.mark.parametrize("name", pages())
def test_no_generated_page_is_stale(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run: make docs"


EXAMPLE = """
import sys
sys.path.insert(0, {root!r})
import pairstill.methods.selection as family
family.__path__.append({folder!r})
from pairstill.methods import METHODS
from pairstill.methods.selection.most_words import METHOD
METHODS[METHOD.name] = METHOD
from tests.conftest import *
"""


@pytest.mark.slow
def test_the_method_and_the_test_of_the_guide_work(tmp_path):
    guide = (ROOT / "docs/how-to/add-a-method.md").read_text()
    method, its_test = re.findall(r"(?ms)^```python\n(.*?)^```", guide)
    (tmp_path / "most_words.py").write_text(method)
    (tmp_path / "test_most_words.py").write_text(its_test)
    (tmp_path / "conftest.py").write_text(EXAMPLE.format(root=str(ROOT), folder=str(tmp_path)))
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_in_the_documents_exist(page):
    """Paths of the project in backticks: `tests/...`, `src/...`, `docs/...`, `recipes/...`, `benchmarks/...`."""
    for name in re.findall(r"`((?:tests|src|docs|recipes|benchmarks|examples)/[\w./-]+\.\w+)`", page.read_text()):
        placeholder = re.search(r"/a/|NAME|most_words", name)
        assert placeholder or (ROOT / name).exists(), name


def test_every_method_is_told_of():
    methods = (ROOT / "docs/explanation/methods.md").read_text()
    assert re.findall(r"^\|`([\w-]+)`\|", methods, re.MULTILINE) == list(METHODS)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_documents_exist(page):
    fenced = "\n".join(page.read_text().split("```")[1::2])
    named = {line.split()[1] for line in fenced.splitlines() if line.startswith("pairstill ")}
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_wrapped(page):
    """Rows of tables are as long as they must be; so are commands and addresses."""
    lines = re.sub(r"(?ms)^```.*?^```", "", page.read_text()).splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith(("|", "!["))] == []


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[\w-]+)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target
