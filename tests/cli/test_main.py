import shlex
import subprocess
import sys

import pytest
import yaml

from pairstill.cli import main as cli
from pairstill.methods import METHODS
from tests.cli.conftest import run
from tests.conftest import ROOT


def test_print_config_shows_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        run("distill", "somewhere", "--method", "mdm", "--settings.alpha", "0.3", "--print-config")
    assert stop.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["settings"]["alpha"] == 0.3
    assert config["settings"]["kernel"] == "geodesic"
    assert config["pairs"] == 100


def test_the_default_method_needs_no_experts(capsys):
    with pytest.raises(SystemExit):
        run("distill", "somewhere", "--print-config")
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["method"] == "rehearsal"
    assert not METHODS[config["method"]].needs_bank
    assert config["settings"]["inner_epochs"] == 40


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_teaches(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "usage: pairstill" in text
    assert "--settings.real-batch" in text or command != "distill"
    assert "image_size" not in text


def test_without_arguments_it_shows_the_way(capsys):
    assert run() == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in cli.COMMANDS)
    assert run("--version") == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("distil x", "unknown command 'distil'. Did you mean 'distill'?"),
        ("distill x --out y --method mdn", "unknown method 'mdn'. Did you mean 'mdm'?"),
        ("distill x --out y --pairs many", "--pairs"),
        ("distill x --out y --settings.alhpa 1", "alhpa"),
        ("distill x", "--out is missing"),
        ("distill nowhere --out y", "nowhere is not a prepared dataset. Make one: pairstill prepare"),
        ("evaluate nowhere --data nowhere", "nowhere is not a distilled set"),
        ("evaluate nowhere", "--data is missing"),
        ("evaluate full --data nowhere --protocol x", "unknown protocol 'x'"),
        ("experts nowhere --out b", "nowhere is not a prepared dataset"),
        ("prepare emoji --out d --towers.image efficientnet_lite9", "Did you mean 'efficientnet_lite"),
        ("prepare emoji --out d --towers.text bort@random", "'bort' is none of them"),
        ("prepare nowhere --out d", "source 'nowhere' does not exist"),
        ("prepare emoji --out d --towers.image-size 2", "image_size must be a whole number of at least 8"),
        ("ls mathods", "Did you mean 'methods'"),
        ("distill x --out y --config missing.yaml", "missing.yaml"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(line, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*shlex.split(line)) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.startswith("error: ")
    assert message in errors
    assert "Traceback" not in errors


RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_fits_the_code(recipe, capsys):
    with pytest.raises(SystemExit) as stop:
        run("distill", "somewhere", "--config", recipe, "--print-config")
    assert stop.value.code == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    written = yaml.safe_load(recipe.read_text())
    assert shown["settings"].items() >= written["settings"].items()
    assert shown["pairs"] == written["pairs"]


def test_readme_commands_exist():
    text = (ROOT / "README.md").read_text()
    fenced = "\n".join(text.split("```")[1::2])
    commands = {line.split()[1] for line in fenced.splitlines() if line.startswith("pairstill ")}
    assert commands
    assert commands <= set(cli.COMMANDS)


def test_the_example_trains_on_a_set(heads_data, tmp_path):
    run("distill", heads_data.folder, "--method", "kmeans", "--pairs", 6, "--out", tmp_path / "set")
    script = ROOT / "examples/train_on_a_set.py"
    command = [sys.executable, str(script), str(tmp_path / "set")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 pairs, loss")
