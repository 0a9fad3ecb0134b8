from pairstill.cli.main import main
from pairstill.show.serve.server import is_loopback
from tests.support.serving import ask


def test_other_names_for_this_machine_are_refused(page):
    assert ask(page, {"Host": "evil.example"})[0] == 400
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("my-machine")


def test_a_folder_that_is_none_is_said(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
