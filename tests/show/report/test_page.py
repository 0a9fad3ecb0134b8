import json
import re
from dataclasses import replace

from pairstill.cli.main import main
from pairstill.sets.distilled_set import load
from pairstill.sets.run_record import read_run_record
from pairstill.show.report.contents import commands, gather
from pairstill.show.report.page import render, write_report


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


def test_a_run_in_the_making_can_be_looked_at(sets, tmp_path):
    run = tmp_path / "half" / "run"
    run.mkdir(parents=True)
    for name in ("run.json", "events.jsonl"):
        (run / name).write_bytes((sets / "mdm" / "run" / name).read_bytes())
    assert "still in the making" in render(gather(tmp_path / "half"))
