import pytest
import yaml

from pairstill.cli import commands, main
from pairstill.cli.parser import parse
from pairstill.errors import PairstillError
from pairstill.runtime import old_names


@pytest.fixture
def not_yet_warned(monkeypatch):
    monkeypatch.setattr(old_names, "_WARNED", set())


def settings_of(*words):
    return parse("distill", commands.distill, ["data", "--out", "set", *words])["settings"]


def test_options_under_their_old_names_are_read_and_told_of(not_yet_warned, capsys):
    made = settings_of("--settings.passes", "7", "--settings.also=[efficientnet_lite1]")
    assert (made.inner_epochs, made.extra_encoders) == (7, ("efficientnet_lite1",))
    told = capsys.readouterr().err
    assert "--settings.passes is now called --settings.inner_epochs" in told
    assert "--settings.also is now called --settings.extra_encoders" in told


@pytest.mark.parametrize("equals", [False, True])
def test_a_yaml_file_with_old_names_is_read_and_told_of(not_yet_warned, equals, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"pairs": 7, "settings": {"still": False, "inner_epochs": 5}}))
    made = settings_of(*([f"--config={path}"] if equals else ["--config", str(path)]))
    assert (made.alternate_initial_images, made.inner_epochs) == (False, 5)
    assert "settings.still is now called alternate_initial_images" in capsys.readouterr().err


def test_an_old_name_is_told_of_once(not_yet_warned, capsys):
    for _ in range(2):
        settings_of("--settings.width", "8")
    assert capsys.readouterr().err.count("is now called") == 1


def test_values_come_from_the_file_and_then_from_the_words(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"method": "mdm", "pairs": 7, "settings": {"alpha": 0.3, "sigma": 0.4}}))
    values = parse("distill", commands.distill, ["data", "--config", str(path), "--settings.alpha", "0.2"])
    assert (values["pairs"], values["settings"].alpha, values["settings"].sigma) == (7, 0.2, 0.4)


def test_a_bare_flag_is_true():
    assert parse("distill", commands.distill, ["data", "--resume"])["resume"] is True
    assert parse("distill", commands.distill, ["data", "--resume", "false"])["resume"] is False


def test_an_unknown_option_is_named_as_people_write_it():
    with pytest.raises(PairstillError, match=r"--imagesize.*pairstill prepare --help"):
        parse("prepare", commands.prepare, ["photos", "--imagesize", "3"])
    with pytest.raises(PairstillError, match="--val-fraction"):
        parse("prepare", commands.prepare, ["photos", "--val-fraction", "much"])


def test_every_command_has_a_parser():
    assert set(main.COMMANDS) <= set(vars(commands))
