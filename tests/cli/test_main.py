import json
import shlex
import subprocess
import sys

import pytest
import yaml

from pairstill.api import DEFAULT_METHOD
from pairstill.cli import main as cli
from pairstill.methods import METHODS
from tests.conftest import ROOT, write_shapes

TINY = ["--towers.image", "test_efficientnet@random", "--towers.image-size", "32", "--towers.embed-dim", "16"]


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def test_the_whole_way_by_command_line(shapes, tmp_path, capsys):
    data, bank, out = tmp_path / "data", tmp_path / "bank", tmp_path / "set"
    assert run("prepare", shapes, "--out", data, "--workers", 0, *TINY) == 0
    assert "ready" in capsys.readouterr().out
    assert run("experts", data, "--out", bank, "--count", 2, "--recipe.epochs", 1, "--recipe.batch-size", 32) == 0
    assert "2 experts, 2 checkpoints" in capsys.readouterr().out
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"method": "mdm", "pairs": 9, "settings": {"iterations": 2, "image_lr": 5.0}}))
    assert run("distill", data, "--bank", bank, "--out", out, "--config", recipe, "--pairs", 6) == 0
    manifest = json.loads((out / "distilled.json").read_text())
    assert manifest["pairs"] == 6  # the command line wins over the file
    assert manifest["info"]["settings"]["iterations"] == 2
    assert manifest["info"]["settings"]["image_lr"] == 5.0
    capsys.readouterr()
    assert run("evaluate", out, "--data", data, "--seeds", 2, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    expected = [
        "method",
        "pairs",
        "towers",
        "protocol",
        "ir1",
        "ir5",
        "ir10",
        "tr1",
        "tr5",
        "tr10",
        "mean",
        "mean_std",
        "seconds",
    ]
    assert set(expected) <= set(rows[0])
    assert (rows[0]["method"], rows[0]["pairs"]) == ("mdm", 6)
    assert run("evaluate", "full", "--data", data, "--seeds", 1) == 0
    assert "full" in capsys.readouterr().out


def test_the_config_of_a_run_is_kept(heads_data, tmp_path):
    assert (
        run("distill", heads_data.folder, "--method", "random", "--pairs", 3, "--out", tmp_path / "set", "--seed", 7)
        == 0
    )
    config = yaml.safe_load((tmp_path / "set/run/config.yaml").read_text())
    assert (config["method"], config["pairs"], config["seed"]) == ("random", 3, 7)
    assert "torch" in json.loads((tmp_path / "set/run/run.json").read_text())["versions"]


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


def test_bad_data_leaves_nothing_half_written(tmp_path, capsys):
    source = write_shapes(tmp_path / "broken", 40)
    picture = source / "003.png"
    picture.write_bytes(picture.read_bytes()[:200])
    (source / "005.png").unlink()
    assert run("prepare", source, "--out", tmp_path / "data", "--workers", 0, *TINY) == 2
    errors = capsys.readouterr().err
    assert "005.png" in errors
    assert not (tmp_path / "data" / "prepared.json").exists()
    assert run("prepare", source, "--out", tmp_path / "data", "--workers", 0, "--on-bad", "skip", *TINY) == 0
    shown = capsys.readouterr().out
    assert "pictures dropped: 2" in shown


def test_ls_lists_everything(capsys):
    assert run("ls") == 0
    shown = capsys.readouterr().out
    for name in ("mdm", "minilm", "nfnet_l0", "karpathy", "clean", "lors"):
        assert name in shown


def test_a_script_without_a_main_guard_works(shapes, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import pairstill\n"
        f"towers = pairstill.Towers(image='test_efficientnet@random', image_size=32, embed_dim=16)\n"
        f"data = pairstill.prepare({str(shapes)!r}, {str(tmp_path / 'data')!r}, towers)\n"
        f"pairs = pairstill.distill(data, {str(tmp_path / 'set')!r}, 'kmeans', 5)\n"
        "print(len(pairs), pairstill.evaluate(pairs, data, seeds=1).pairs)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "5"]


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


def test_the_default_method_is_known():
    assert DEFAULT_METHOD in METHODS


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
