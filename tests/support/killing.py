"""Kill a stage at random moments, let it finish, and compare what it made with an undisturbed run.

    python -m tests.support.killing STAGE SOURCE FOLDER KILLS SEED

One process imports everything and forks a child for every attempt, so that an attempt costs its work and no imports.
It computes nothing itself before it forks, and its children use one thread: threads do not survive a fork.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from pairstill import api
from pairstill.methods.through_training.rehearsal import Settings
from pairstill.runtime.files import read_manifest, sha256
from pairstill.runtime.launchers import InProcess
from pairstill.runtime.progress import console
from pairstill.studies.comparison import compare
from pairstill.studies.study import read_study
from pairstill.training.training_recipe import Recipe
from tests.conftest import TINY_HEADS

SHORT = Recipe(epochs=4, batch_size=16)
TOLD_APART = {"run.json", "events.jsonl", "config.yaml", "checkpoint.safetensors"}
"""Files with the time of day or the seconds of the work in them, or the size of such a file."""

STUDY = """
towers: {image: test_efficientnet@random, image_size: 32, embed_dim: 16}
experts: 2
expert: {epochs: 2, batch_size: 32}
student: {epochs: 4, batch_size: 16}
seeds: 2
rows:
  - {method: mdm, pairs: 4, settings: {iterations: 6, check_every: 3, real_batch: 16}}
  - {method: kmeans, pairs: 4}
"""


def prepare(source, folder):
    api.prepare(source, folder / "made", TINY_HEADS, workers=0)


def experts(source, folder):
    api.train_experts(source, folder / "made", 3, Recipe(epochs=8, batch_size=16))


def distil(source, folder):
    settings = Settings(
        iterations=20, check_every=10, inner_epochs=4, student_width=8, real_batch=16, images_per_step=4, views=1
    )
    api.distill(source, folder / "made", "rehearsal", 8, settings=settings, student=SHORT, resume=True)


def comparison(source, folder):
    (folder / "study.yaml").write_text(STUDY)
    compare(read_study(folder / "study.yaml"), folder / "made", source, InProcess())


STAGES = {"prepare": prepare, "experts": experts, "distil": distil, "compare": comparison}


def attempt(stage, source, folder, kill_after=None):
    """Run a stage in a child; returns how it ended and how long it took."""
    begin, child = time.monotonic(), os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            console.quiet = True
            STAGES[stage](source, folder)
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - begin


def made(folder):
    """Every file of a stage by its hash; of a comparison's rows, what does not depend on time."""
    found = {}
    for path in sorted((folder / "made").rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.parent.name == "rows":
            found[name] = {key: value for key, value in read_manifest(path).items() if not is_time(key)}
        elif path.is_file() and path.suffix != ".lock" and path.name not in TOLD_APART and "study" not in name:
            found[name] = sha256(path)
    return found


def is_time(key):
    return "second" in key or key == "peak_mib"


def main(stage, source, folder, kills, seed):
    draw, folder = random.Random(seed), Path(folder)
    straight, broken = folder / "straight", folder / "broken"
    straight.mkdir(parents=True)
    broken.mkdir()
    code, seconds = attempt(stage, source, straight)
    assert code == 0, "the undisturbed run failed"
    killed = 0
    while killed < int(kills):
        code, _ = attempt(stage, source, broken, draw.uniform(0, seconds))
        if code == 0:  # it was done before it could be killed: begin again
            broken = folder / f"broken-{killed}-{time.monotonic_ns()}"
            broken.mkdir()
        else:
            assert code == -signal.SIGKILL, f"it ended with code {code} after {killed} kills"
            killed += 1
    code, _ = attempt(stage, source, broken)
    assert code == 0, f"it could not go on after {killed} kills"
    expected, found = made(straight), made(broken)
    different = [name for name in {*expected, *found} if expected.get(name) != found.get(name)]
    assert not different, different
    print(f"{killed} kills, {len(found)} files the same, {seconds:.1f} s undisturbed")


if __name__ == "__main__":
    main(*sys.argv[1:])
