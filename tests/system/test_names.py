"""Strange names and texts, the whole way: long, with spaces, in other scripts, with quotes, markup or newlines."""

import json
import os
import re

import pytest

from pairstill.cli import main as cli
from pairstill.data.checking import check
from pairstill.data.sources import SourceSpec, open_source
from pairstill.errors import PairstillError
from pairstill.runtime.files import atomic, write_text
from pairstill.sets.distilled_set import load
from pairstill.sets.exports import FORMATS
from tests.conftest import write_shapes

TINY = ["--towers.image", "test_efficientnet@random", "--towers.image-size", "32", "--towers.embed-dim", "16"]
SCRIPT = "<script>alert('x')<"
NAMES = [
    "with  spaces .png",
    "emoji 🙂‍↔️ 🏳️‍🌈.png",
    "שלום عالم \u202egnp.png",
    "quotes \"two\" 'one' `back`.png",
    "new\nline.png",
    f"{SCRIPT}.png",
    "[red]markup[/red] :heart: [/].png",
    "{0} %s $HOME * ?.png",
    "-rf.png",
    "é" * 125 + "e.png",
    "deep/" * 30 + "a.png",
]
CAPTIONS = [
    SCRIPT,
    "</script><b>bold",
    "a\nnew\u2028line\ttab",
    "🙂 שלום \u202e",
    "[/] [bold] :heart:",
    "x" * 5000,
    '"',
]
OUTS = ["[", "b] [red] :heart: 🙂", "é" * 127, f"new\nline {SCRIPT} 'q'"]


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A dataset whose names and captions are strange."""
    folder = write_shapes(tmp_path_factory.mktemp("strange") / f"my {SCRIPT} set\n# heading", 40)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    for row, name in zip(rows, NAMES, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / row["file_name"]).rename(folder / name)
        row["file_name"] = name
    for row, caption in zip(rows, CAPTIONS, strict=False):
        row["captions"] = [caption]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_whole_way_with_strange_names(strange, tmp_path, capsys):
    out = tmp_path.joinpath(*OUTS)
    assert run("prepare", strange, "--out", out / "data", "--workers", 0, *TINY) == 0
    assert f"{out / 'data'}: ready" in capsys.readouterr().out
    made = ["--method", "rehearsal", "--pairs", 8, "--student.epochs", 1]
    short = {"iterations": 1, "inner_epochs": 1, "student_width": 8, "real_batch": 8, "views": 0}
    settings = [word for key, value in short.items() for word in (f"--settings.{key.replace('_', '-')}", value)]
    assert run("distill", out / "data", "--out", out / "set", *made, *settings) == 0
    assert f"{out / 'set'}: 8 pairs" in capsys.readouterr().out
    assert run("evaluate", out / "set", "--data", out / "data", "--seeds", 1, "--student.epochs", 1, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["pairs"] == 8
    whole = load(out / "set")
    assert {caption for near in whole.captions for caption in near} & set(CAPTIONS)
    for form in FORMATS:
        assert run("export", out / "set", "--out", out / form, "--to", form) == 0
        assert [list(near) for near in load(out / form).captions] == [list(near) for near in whole.captions]
    assert run("report", out / "set") == 0
    assert_no_script_of_others((out / "set/report.html").read_text())
    card = (out / "hf/README.md").read_text()
    assert "\n# heading" not in card and "<script" not in card.split("---\n", 2)[2]


def assert_no_script_of_others(page):
    """The page's own scripts are all there is: no caption or name opens one or ends one."""
    own = (len(re.findall(r"<script", page)), len(re.findall(r"</script", page)))
    assert own == (3, 3)
    assert SCRIPT not in page and "<b>bold" not in page


def test_a_file_with_the_longest_name_is_written(tmp_path):
    for name in ("é" * 127, "🙂" * 63, "x" * 255):
        with atomic(tmp_path / name) as temporary:
            assert len(os.fsencode(temporary.name)) <= 255
            temporary.write_text("whole")
        assert (tmp_path / name).read_text() == "whole"


def test_a_name_that_is_too_long_is_said(tmp_path):
    with pytest.raises(PairstillError, match=r"could not write .*too long"):
        write_text(tmp_path / ("x" * 256), "")


def test_errors_do_not_steer_the_terminal(tmp_path, capsys):
    folder = write_shapes(tmp_path / "shapes", 8)
    rows = (folder / "metadata.jsonl").read_text().replace("000.png", "\\u001b[2J\\u009b31m.png")
    (folder / "metadata.jsonl").write_text(rows)
    assert run("prepare", folder, "--out", tmp_path / "data", *TINY) == 2
    errors = capsys.readouterr().err
    assert "are missing" in errors and "[2J" in errors
    assert "\x1b" not in errors and "\x9b" not in errors


@pytest.mark.parametrize("name", ["\\udcff.png", "a\\u0000.png"])
def test_a_name_that_is_no_text_is_said(name, tmp_path, capsys):
    folder = write_shapes(tmp_path / "shapes", 8)
    (folder / "metadata.jsonl").write_text((folder / "metadata.jsonl").read_text().replace("000.png", name))
    assert run("prepare", folder, "--out", tmp_path / "data", *TINY) == 2
    assert "metadata.jsonl, line 1: the image's name" in capsys.readouterr().err


def test_a_folder_whose_name_is_no_text_is_said(tmp_path, capsys):
    folder = write_shapes(tmp_path / os.fsdecode(b"latin-\xe9"), 8)
    assert run("prepare", folder, "--out", tmp_path / "data", *TINY) == 2
    assert "no valid text. Rename the folder" in capsys.readouterr().err


def test_half_a_character_in_a_caption_is_said_or_dropped(tmp_path):
    folder = write_shapes(tmp_path / "shapes", 40)
    text = (folder / "metadata.jsonl").read_text().replace("image 3: cross", "half \\ud83d")
    (folder / "metadata.jsonl").write_text(text.replace("image 3: disc", "half \\ud83d"))
    dataset = open_source(SourceSpec(str(folder)))
    with pytest.raises(PairstillError, match=r"of 003\.png holds half a character"):
        check(dataset)
    kept, findings = check(dataset, on_bad="skip")
    assert findings.broken_captions == 1 and len(kept.captions) == 79
    assert kept.fingerprint and dataset.annotations
