import json

import pytest
import yaml

from tests.cli.conftest import TINY, run
from tests.conftest import write_shapes


@pytest.mark.slow
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
    assert "images dropped: 2" in shown


def test_ls_lists_everything(capsys):
    assert run("ls") == 0
    shown = capsys.readouterr().out
    for name in ("mdm", "minilm", "nfnet_l0", "karpathy", "clean", "lors"):
        assert name in shown
