import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.sets.distilled_set import load
from pairstill.sets.initial_record import read_initial_pairs
from pairstill.sets.run_record import read_run_record
from pairstill.show.report import gallery as gallery_module
from pairstill.show.report.charts import ACROSS, UPWARDS, Scale, lines, stems, ticks
from pairstill.show.report.contents import commands, gather
from pairstill.show.report.gallery import gallery
from pairstill.show.report.page import render, write_report


def decoded(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))).convert("RGB"))


def test_ticks_are_round_and_hold_all_values():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0, 0.031) == [0, 0.01, 0.02, 0.03, 0.04]
    for low, high in ((3, 3), (-1.3, 7.9), (0, 1e6), (1e-5, 2e-5)):
        marks = ticks(low, high)
        assert marks[0] <= low and marks[-1] >= high and 3 <= len(marks) <= 12


def test_a_line_goes_through_its_points():
    chart = lines({"a <b>": [(0, 0), (10, 5)], "c": [(0, 5), (5, 10)]}, "x", "y")
    paths = [
        [tuple(map(float, point.split(","))) for point in path.split()]
        for path in re.findall('points="([^"]+)"', chart)
    ]
    x, y = Scale(0, 10, *ACROSS), Scale(0, 10, *UPWARDS)
    assert paths == [[(x(0), y(0)), (x(10), y(5))], [(x(0), y(5)), (x(5), y(10))]]
    assert "a &lt;b&gt;" in chart and "<b>" not in chart
    assert lines({}, "x", "y") == "" == stems([], "x", "y")
    assert stems([("first", 0.5, 0.1), ("second", 1.0, 0.0)], "x", "y").count("<circle") == 2


def test_a_gallery_has_the_pictures_before_and_after(sets):
    made, first = load(sets / "mdm"), read_initial_pairs(sets / "mdm" / "run")
    shown = gallery(made, first)
    assert shown["size"] == 32 and len(shown["pairs"]) == 6
    pair = shown["pairs"][2]
    picture = (made.pictures()[2] * 255).permute(1, 2, 0).numpy()
    assert np.abs(decoded(pair["after"]) - picture).mean() < 12
    assert np.abs(decoded(pair["before"]).astype(float) - first.pictures[2].permute(1, 2, 0).numpy()).mean() < 12
    moved = np.abs(picture.round() - first.pictures[2].permute(1, 2, 0).numpy()).mean()
    assert pair["moved"] == pytest.approx(moved, abs=0.02)
    assert pair["captions"] == list(made.captions[2]) and pair["first"] == first.captions[2]
    assert pair["cell"] == first.cells[2]
    coreset = gallery(load(sets / "random"), read_initial_pairs(sets / "random" / "run"))
    assert "before" not in coreset["pairs"][0]


def test_a_gallery_keeps_to_its_budget(sets, monkeypatch):
    made = load(sets / "mdm")
    fine = sum(len(pair["after"]) for pair in gallery(made, None)["pairs"])
    monkeypatch.setattr(gallery_module, "BUDGET", fine // 2)
    assert sum(len(pair["after"]) for pair in gallery(made, None)["pairs"]) < fine


def test_a_page_of_several_sets(sets):
    findings = gather(sets)
    assert [run.name for run in findings.runs] == ["mdm"]
    assert len(findings.studies[0].runs) == 2
    page = render(findings)
    assert page.count("<tr>") + page.count('<tr class="full">') == 4
    assert "50 %" in page and "200 %" not in page
    assert "merge ratio t" in page and "cosine of two pairs" in page and "loss and its terms" in page
    for outside in re.findall(r"""(?:src|href)=["']([^"'#]+)""", page.split("<script")[0]):
        assert outside.startswith("data:")


def test_a_page_of_one_set_has_its_scores_and_its_commands(sets, tmp_path, capsys):
    assert main(["report", str(sets / "mdm"), "--out", str(tmp_path / "r.html")]) == 0
    assert "Open it in a browser" in capsys.readouterr().out
    page = (tmp_path / "r.html").read_text()
    assert "6 pairs of" in page and "pairstill distill data --method mdm --pairs 6" in page
    assert "--settings.iterations 4" in page and "--settings.image-lr 10.0" in page and "--settings.kernel" not in page
    row = json.loads((sets / "mdm/run/scores.jsonl").read_text().splitlines()[0])
    assert f"{row['mean']:.1f} ± {row['mean_std']:.1f}" in page


def test_captions_can_not_break_out_of_the_page(sets, tmp_path):
    made = load(sets / "random")
    evil = "</script><script>alert(1)</script><b>"
    strange = replace(made, captions=[[evil]] * 6, info={**made.info, "dataset": {"name": "<i>x</i>"}})
    strange.save(tmp_path / "set")
    page = write_report(tmp_path / "set").read_text()
    assert evil not in page and "<i>x</i>" not in page
    data = re.search(r'id="galleries">(.*?)</script>', page, re.DOTALL).group(1)
    assert json.loads(data)[0]["pairs"][0]["captions"] == [evil]
    assert "pairstill distill data --method random" in commands(read_run_record(tmp_path / "set"))[-2]


def test_a_folder_without_anything_is_said(tmp_path):
    with pytest.raises(PairstillError, match="nothing to report"):
        gather(tmp_path)
    with pytest.raises(PairstillError, match="is not a folder"):
        gather(tmp_path / "none")
    (tmp_path / "rows").mkdir()
    with pytest.raises(PairstillError, match="without a table"):
        gather(tmp_path)


def test_a_run_in_the_making_can_be_looked_at(sets, tmp_path):
    run = tmp_path / "half" / "run"
    run.mkdir(parents=True)
    for name in ("run.json", "events.jsonl"):
        (run / name).write_bytes((sets / "mdm" / "run" / name).read_bytes())
    assert "still in the making" in render(gather(tmp_path / "half"))
