"""The demo: the whole way on the embedded emoji set, in a few minutes on two cores."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from pairstill import api
from pairstill.evaluation.scoring import Result, evaluate_full
from pairstill.features.prepared_folder import PreparedDataset
from pairstill.methods.distributions import mdm
from pairstill.methods.selection import kmeans, random_pairs
from pairstill.methods.through_training import rehearsal
from pairstill.runtime.progress import console, duration
from pairstill.runtime.run_folder import read_events
from pairstill.sets.distilled_set import load
from pairstill.show.report.page import write_report
from pairstill.show.report.pairs_picture import before_and_after
from pairstill.studies.tables import results_table, write_results
from pairstill.towers.two_tower import Towers
from pairstill.training.protocols import protocol_named
from pairstill.training.training_recipe import Recipe

SOURCE = "emoji"
TOWERS = Towers(image="efficientnet_lite0", text="minilm", train="heads", image_size=64, embed_dim=256)
PAIRS = 100
EXPERTS = 4
RECIPE = Recipe(epochs=5)
"""Of the experts and of the students on the full set: ten epochs, as elsewhere, would take a minute more."""
SETTINGS = {
    "random": random_pairs.Settings(),
    "kmeans": kmeans.Settings(),
    "mdm": mdm.Settings(iterations=20, check_every=10),
    "rehearsal": rehearsal.Settings(iterations=50, check_every=50, real_batch=1024, views=0),
}
BEST = "rehearsal"


def run_demo(out: Path) -> list[Result]:
    """Prepare, train experts, distil with each method, score five students each, and show the table."""
    started = time.monotonic()
    _say(1, "the embedded emoji set: 10,000 images in seven art styles, tested on a style never trained on")
    data = api.prepare(SOURCE, out / "data", TOWERS, workers=2)
    _say(2, f"{EXPERTS} experts, fine-tuned on all training pairs from one anchor")
    bank = api.train_experts(data, out / "bank", EXPERTS, RECIPE)
    _say(3, f"{PAIRS} pairs by each method, each scored by five students")
    rows = []
    for method, settings in SETTINGS.items():
        made = api.distill(data, out / method, method, PAIRS, bank, settings=settings, resume=True)
        row = api.evaluate(made, data)
        distilling = read_events(out / method / "run")[-1]["seconds"]
        rows.append(replace(row, seconds=distilling + row.seconds))
    rows.append(evaluate_full(data.encoded(device=api.device_named("auto")), protocol_named("clean"), recipe=RECIPE))
    _keep_students(out, data)
    write_results(out / "results.json", rows)
    before_and_after(load(out / "kmeans"), load(out / BEST), out / "pairs.png")
    write_report(out)
    _show(out, rows, time.monotonic() - started)
    return rows


def _keep_students(out: Path, data: PreparedDataset) -> None:
    """One student of the distilled pairs and one of all, to search with."""
    if not (out / "students" / BEST / "student.json").exists():
        api.train_student(out / BEST, data, out / "students" / BEST)
    if not (out / "students/full/student.json").exists():
        api.train_student("full", data, out / "students/full", student=RECIPE)


def _say(number: int, what: str) -> None:
    console.print(f"[bold]{number}/3[/] {what}", soft_wrap=True)


def _show(out: Path, rows: list[Result], seconds: float) -> None:
    printer = Console(highlight=False)
    printer.print(results_table(rows, f"1,000 images of an unseen style, {TOWERS.describe()}"))
    by_method = {row.method: row for row in rows}
    ratio = by_method[BEST].mean / by_method["random"].mean
    share = 100 * by_method[BEST].mean / by_method["full"].mean
    printer.print(
        f"{PAIRS} distilled pairs give {ratio:.1f} x the recall of {PAIRS} random ones, and {share:.0f} % of the full "
        f"set's, in {duration(seconds)}.\n"
        f"report    {out / 'report.html'} (open it in a browser)\n"
        f"search    pairstill serve {out}\n"
        f"results   {out / 'results.json'}\npictures  {out / 'pairs.png'}\nthe set   {out / BEST}",
        soft_wrap=True,
    )
