"""The test of a module is found without searching: that of `pairstill/a/b.py` is `tests/a/test_b.py`.

A package with code in its `__init__.py` is a module like any other: that of `pairstill/a/b/__init__.py` is
`tests/a/test_b.py` too. What tests the whole way, and belongs to no module, stands in `tests/system`; what several
tests use, in `tests/support` and in the `conftest.py` of their folder.
"""

import ast

from tests.conftest import ROOT

SOURCE, TESTS = ROOT / "src" / "pairstill", ROOT / "tests"

EXCEPTIONS = {
    "cli/test___main__.py": "missing: `python -m pairstill.cli` is a line that calls `cli.main`",
    "methods/test_conformance.py": "of no module: what every method promises is tried on all of them at once",
}
"""Test files that are missing, or that have no module, each with the reason."""


def has_code(program):
    """Whether a file holds more than a docstring."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(program.read_text()).body)


def wanted(program):
    """Where the test of a module has to be, below `tests`."""
    module = program.parent if program.name == "__init__.py" else program.with_suffix("")
    folder = "" if module == SOURCE else f"{module.parent.relative_to(SOURCE).as_posix()}/"
    return f"{folder}test_{module.name}.py".removeprefix("./")


def modules():
    return {wanted(program) for program in SOURCE.rglob("*.py") if program.name != "__init__.py" or has_code(program)}


def files():
    found = (path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return {path.as_posix() for path in found if path.parts[0] not in ("system", "support")}


def test_every_module_has_its_test_file_and_every_test_file_its_module():
    missing, more = modules() - files(), files() - modules()
    assert missing - EXCEPTIONS.keys() == set(), "modules without a test file of their own"
    assert more - EXCEPTIONS.keys() == set(), "test files without a module: name them after the module they test"
    assert EXCEPTIONS.keys() == missing | more, "exceptions that are none any more"


def test_every_test_file_has_a_test():
    empty = [name for name in files() if "\ndef test_" not in (TESTS / name).read_text()]
    assert empty == []


def test_packages_with_code_are_modules():
    assert {"test_pairstill.py", "test_methods.py", "data/test_sources.py", "sets/test_cards.py"} <= modules()
    assert "test_towers.py" not in modules() and "towers/test_weights.py" in modules()
