"""Write the notebook of an example script, a cell for each of its parts.

python examples/make_notebook.py        # examples/train_on_a_set.py -> examples/train_on_a_set.ipynb
"""

import ast
import json
from pathlib import Path

SCRIPT = Path(__file__).parent / "train_on_a_set.py"


def cells(source):
    """The docstring as Markdown, the imports, then what follows, cut where the indented loop begins and ends."""
    tree = ast.parse(source)
    lines = source.splitlines()
    groups, kinds = [], []
    for node in tree.body[1:]:
        kind = (
            "import"
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else "loop"
            if isinstance(node, ast.For)
            else "code"
        )
        if not kinds or kinds[-1] != kind:
            groups.append([])
            kinds.append(kind)
        groups[-1].append(node)
    code = ["\n".join(lines[group[0].lineno - 1 : group[-1].end_lineno]) for group in groups]
    text = ast.get_docstring(tree).replace("    python examples/", "    # as a script: python examples/")
    return [("markdown", text), *(("code", part) for part in code)]


def notebook(source):
    """The notebook as JSON, with a demo's set in place of the command line's."""
    source = source.replace("sys.argv[1]", '"runs/demo/rehearsal"').replace("import sys\n\n", "")
    made = []
    for number, (kind, text) in enumerate(cells(source)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    SCRIPT.with_suffix(".ipynb").write_text(notebook(SCRIPT.read_text()))
