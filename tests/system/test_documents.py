import re
import subprocess
import sys

from pairstill.cli.main import COMMANDS
from pairstill.methods import METHODS
from tests.conftest import ROOT


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "faq" / "index.html").exists()


def test_every_command_and_every_method_is_told_of():
    commands, methods = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("commands", "methods"))
    assert set(re.findall(r"`pairstill (\w+)", commands)) == set(COMMANDS)
    assert set(re.findall(r"^\| `([\w-]+)` \|", methods, re.MULTILINE)) == set(METHODS)


def test_commands_in_the_documents_exist():
    for page in (ROOT / "docs").glob("*.md"):
        fenced = "\n".join(page.read_text().split("```")[1::2])
        named = {line.split()[1] for line in fenced.splitlines() if line.startswith("pairstill ")}
        assert named <= set(COMMANDS), page
