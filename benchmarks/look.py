"""How fast and how large what people look at is: the report of 500 pairs, a search, and what an export loses.

    python -m benchmarks.look --work runs/flickr8k [--size 224]

`--work` is where `benchmarks.flickr8k` left its sets and data. Writes results/look.csv. The first paint is Chromium's
own figure, opened from disk; without Chromium it is left out. Search times are of the whole answer over HTTP on this
machine, with 1,000 test images, after the first one, which loads the students.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import uvicorn

import pairstill
from benchmarks.step import RESULTS, write
from pairstill.features.prepared_folder import open_prepared
from pairstill.methods.distributions import mdm
from pairstill.sets.exports import export, load_export
from pairstill.show.report.page import write_report
from pairstill.show.serve.app import build_app
from pairstill.towers.two_tower import Towers

QUESTIONS = ("a dog runs on the beach", "two children play football", "a man climbs a rock", "people in a city street")


def measure_report(folder: Path, out: Path) -> dict[str, object]:
    begin = time.perf_counter()
    path = write_report(folder, out / "report.html")
    seconds = time.perf_counter() - begin
    return {
        "report_seconds": round(seconds, 1),
        "report_mib": round(path.stat().st_size / 2**20, 1),
        "first_paint_ms": first_paint(path),
    }


def first_paint(path: Path, repeats: int = 5) -> float | str:
    """The median of several, each in a fresh page."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        return ""
    from playwright.sync_api import sync_playwright

    found: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for _ in range(repeats):
            page = browser.new_page()
            page.goto(path.as_uri())
            found.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            page.close()
        browser.close()
    return float(round(statistics.median(found)))


def measure_search(root: Path) -> dict[str, object]:
    """Both students asked in one question, as the page does."""
    server = uvicorn.Server(uvicorn.Config(build_app(root), port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    seconds = []
    for question in (*QUESTIONS, *QUESTIONS, *QUESTIONS):
        query = urlencode([("q", question), ("data", "data"), ("student", "few"), ("student", "all")])
        begin = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/search?{query}") as answer:
            found = json.loads(answer.read())
        seconds.append(time.perf_counter() - begin)
        assert len(found) == 2 and found[0]["found"]
    server.should_exit = True
    return {
        "search_first_ms": round(1000 * seconds[0]),
        "search_median_ms": round(1000 * statistics.median(seconds[1:])),
        "search_worst_ms": round(1000 * max(seconds[1:])),
    }


def measure_export(made: Path, data: Path, towers: Towers, out: Path) -> dict[str, object]:
    """Validation recall of students on the set and on its 8-bit export, and what was clipped."""
    changes = {"image_size": towers.image_size}
    exact = pairstill.evaluate(pairstill.load(made), data, split="val", towers=changes)
    folder = export(made, out / "hf", "hf")
    clipped = json.loads((folder / "export.json").read_text())["clipped"]
    rounded = pairstill.evaluate(load_export(folder), data, split="val", towers=changes)
    return {
        "exact_recall": f"{exact.mean:.1f} ± {exact.mean_std:.1f}",
        "export_recall": f"{rounded.mean:.1f} ± {rounded.mean_std:.1f}",
        "clipped_percent": round(100 * clipped["share"], 1),
        "clipped_by": round(clipped["by"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/flickr8k"))
    parser.add_argument("--size", type=int, default=224)
    arguments = parser.parse_args()
    towers = Towers(image_size=arguments.size)
    sets = arguments.work / str(arguments.size)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        data = open_prepared(arguments.work / "data")
        prepared = Path(shutil.copytree(data.folder, out / "root" / "data"))
        changed = json.loads((prepared / "prepared.json").read_text())
        changed["towers"] = towers.to_dict()
        (prepared / "prepared.json").write_text(json.dumps(changed))
        few = mdm.Settings(iterations=4, check_every=4)  # how long it was distilled does not change the report's size
        pairstill.distill(prepared, sets / "look-500", "mdm", 500, sets / "bank", settings=few, resume=True)
        row: dict[str, object] = {
            "set": f"mdm, 500 pairs, {arguments.size} px",
            **measure_report(sets / "look-500", out),
        }
        pairstill.train_student(sets / "mdm-100", prepared, out / "root" / "few")
        pairstill.train_student("full", prepared, out / "root" / "all")
        row |= measure_search(out / "root")
        row |= measure_export(sets / "mdm-100", prepared, towers, out)
    print(row)
    write(RESULTS / "look.csv", [row])


if __name__ == "__main__":
    main()
