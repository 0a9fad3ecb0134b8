import json
import subprocess
import sys

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))

import make_notebook  # noqa: E402


def test_a_clip_like_model_trains_on_a_set(sets):
    command = [sys.executable, str(EXAMPLES / "clip_style.py"), str(sets / "mdm"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("temperature") == 3


def test_the_notebook_is_that_of_the_script_and_runs(sets):
    source = (EXAMPLES / "train_on_a_set.py").read_text()
    written = (EXAMPLES / "train_on_a_set.ipynb").read_text()
    assert written == make_notebook.notebook(source), "run: python examples/make_notebook.py"
    code = ["".join(cell["source"]) for cell in json.loads(written)["cells"] if cell["cell_type"] == "code"]
    namespace = {}
    for part in code:
        exec(part.replace("runs/demo/rehearsal", str(sets / "mdm")), namespace)
    assert len(namespace["pairs"]) == 6 and namespace["loss"].isfinite()
