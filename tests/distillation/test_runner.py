import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import get_args

import pytest
import torch

from pairstill import api
from pairstill.distillation.distribution_matching import Init
from pairstill.distillation.outer_loop import optimise
from pairstill.distillation.synthetic_pairs import ADAM_BETA, Diverged, SyntheticPairs
from pairstill.errors import PairstillError
from pairstill.evaluation.scoring import evaluate
from pairstill.methods import METHODS
from pairstill.methods.distributions import mdm
from pairstill.runtime.run_folder import Run, read_events
from pairstill.training.losses import info_nce, kernel_energy
from pairstill.training.protocols import protocol_named
from pairstill.training.training_recipe import Recipe
from tests.conftest import hidden_test_split

SHORT = mdm.Settings(iterations=6, check_every=3, image_lr=10.0, text_lr=1.0, real_batch=16)
QUICK = Recipe(epochs=4, momentum=0.9, batch_size=16)


distill = functools.partial(api.distill, student=QUICK)
"""Students that choose an iteration train for four epochs: what is chosen does not matter here."""

MATCHING = {"iterations": 3, "check_every": 3, "inner_steps": 2, "inner_batch": 4, "image_lr": 1.0, "text_lr": 1.0}
SETTINGS = {
    "mdm": {"iterations": 6, "check_every": 3, "image_lr": 10.0, "text_lr": 1.0, "real_batch": 16},
    "dm": {"iterations": 4, "check_every": 4, "image_lr": 10.0, "text_lr": 1.0, "real_batch": 16},
    "herding": {"epochs": 1},
    "k-center": {"epochs": 1},
    "forgetting": {"epochs": 2},
    "mtt-vl": MATCHING,
    "tesla": MATCHING,
    "lors": {**MATCHING, "similarity_lr": 0.1},
    "rehearsal": {
        "images_per_step": 4,
        "iterations": 4,
        "check_every": 2,
        "inner_epochs": 3,
        "student_width": 8,
        "real_batch": 16,
    },
    "edge": {"epochs": 1, "batch_size": 64, "tuning_size": 16, "sampling_steps": 2},
}


def files_of(folder):
    names = ("images.safetensors", "texts.safetensors", "captions.jsonl", "distilled.json", "README.md")
    return {name: (folder / name).read_bytes() for name in names}


def settings_of(method):
    return METHODS[method].settings(**SETTINGS.get(method, {}))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("towers", ["heads", "full"])
def test_every_method_keeps_the_contract(method, towers, request, tmp_path):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    settings = settings_of(method)
    if method == "edge":
        settings = replace(settings, **request.getfixturevalue("tiny_diffusion"))
    if towers == "full" and method == "mdm":
        settings = replace(SHORT, check_every=6)
    with hidden_test_split():
        made = distill(data, tmp_path / "a", method, 8, bank, settings=settings)
    assert made.images.shape == (8, 3, 32, 32)
    assert made.texts.shape == (8, 384)
    assert len(made.captions) == 8
    assert set(made.captions[0]) <= set(data.dataset.captions)
    assert made.info["method"] == method
    assert made.info["dataset"]["fingerprint"] == data.dataset.fingerprint
    distill(data, tmp_path / "b", method, 8, bank, settings=settings)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    row = evaluate(data.encoded(), made, protocol_named("clean"), seeds=1, recipe=QUICK)
    assert 0 < row.mean <= 100


def test_mdm_moves_pictures_and_texts_and_lowers_its_loss(heads_data, heads_bank, tmp_path):
    settings = replace(SHORT, iterations=30, check_every=30, teacher="fine-tuned")
    start = distill(heads_data, tmp_path / "start", "kmeans", 8)
    made = distill(heads_data, tmp_path / "set", "mdm", 8, heads_bank, settings=settings)
    assert not torch.equal(start.images, made.images)
    steps = [json.loads(line) for line in (tmp_path / "set/run/events.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if step["kind"] == "step"]
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5])


def test_the_objective_is_the_papers():
    random = torch.Generator().manual_seed(0)
    real, synthetic = (
        tuple(torch.nn.functional.normalize(torch.randn(n, 6, generator=random), dim=-1) for _ in range(2))
        for n in (9, 5)
    )

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True)

    loss, terms = mdm.objective(real, synthetic, mdm.Settings())
    expected = info_nce(*synthetic, 0.07)
    expected += 0.8 * kernel_energy(unit(real[0] + real[1]), unit(synthetic[0] + synthetic[1]), 0.5)
    expected += 0.8 * kernel_energy(unit(real[0] - real[1]), unit(synthetic[0] - synthetic[1]), 0.5)
    torch.testing.assert_close(loss, expected)
    assert terms.keys() == {"loss", "contrast", "agreement", "discrepancy", "small_brackets"}
    without, terms = mdm.objective(real, synthetic, mdm.Settings(agreement=0, discrepancy=0))
    torch.testing.assert_close(without, info_nce(*synthetic, 0.07))
    _, terms = mdm.objective(synthetic, synthetic, mdm.Settings())
    assert terms["small_brackets"] == 2


@pytest.mark.parametrize(
    "change",
    [
        *({"init": init} for init in get_args(Init) if init != "kmeans"),
        *({"teacher": teacher} for teacher in ("pretrained", "fine-tuned", "weighted-sum")),
        *({"kernel": kernel} for kernel in ("chordal", "laplacian")),
        *({"features": features} for features in ("singles", "concat")),
        {"agreement": 0.0},
        {"discrepancy": 0.0},
        {"contrast": 0.0},
        {"merged_experts": 3},
    ],
    ids=lambda change: "-".join(map(str, *change.items())),
)
def test_every_ablation_is_a_setting(change, heads_data, heads_bank, tmp_path):
    settings = replace(SHORT, iterations=2, check_every=2, **change)
    made = distill(heads_data, tmp_path / "set", "mdm", 4, heads_bank, settings=settings)
    assert made.info["settings"].items() >= change.items()
    assert torch.isfinite(made.images).all()


class _Stop(Exception):
    pass


@pytest.mark.parametrize(("towers", "method"), [("heads", "mdm"), ("full", "mdm"), ("heads", "rehearsal")])
def test_a_killed_run_resumes_to_the_same_bytes(towers, method, request, tmp_path, monkeypatch):
    data, bank = (request.getfixturevalue(f"{towers}_{what}") for what in ("data", "bank"))
    settings = replace(settings_of(method), iterations=7)
    distill(data, tmp_path / "whole", method, 6, bank, settings=settings)
    monkeypatch.setattr("pairstill.distillation.outer_loop.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    original = Run.event
    for kill_at in (1, 2, 5):

        def event(self, kind, kill_at=kill_at, **values):
            if kind == "step" and values["iteration"] == kill_at:
                raise _Stop
            original(self, kind, **values)

        monkeypatch.setattr(Run, "event", event)
        with pytest.raises(_Stop):
            distill(data, tmp_path / "killed", method, 6, bank, settings=settings, resume=True)
    monkeypatch.setattr(Run, "event", original)
    distill(data, tmp_path / "killed", method, 6, bank, settings=settings, resume=True)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "killed")
    steps = [event["iteration"] for event in read_events(tmp_path / "killed/run") if event["kind"] == "step"]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] >= 7


def test_ctrl_c_saves_and_says_how_to_go_on(heads_data, heads_bank, tmp_path):
    data, bank, out = heads_data.folder, heads_bank.folder, tmp_path / "set"
    command = [sys.executable, "-m", "pairstill.cli", "distill", str(data), "--bank", str(bank), "--out", str(out)]
    command += ["--pairs", "6", "--settings.iterations", "100000", "--settings.check-every", "100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    events = out / "run" / "events.jsonl"
    deadline = time.monotonic() + 90
    while not (events.exists() and '"step"' in events.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "everything so far is kept" in errors
    assert "Continue with:  pairstill distill" in errors
    assert "--resume" in errors
    assert (out / "run" / "checkpoint.safetensors").exists()
    assert not (out / "distilled.json").exists()


def test_a_folder_in_use_or_other_settings_are_refused(heads_data, heads_bank, tmp_path):
    distill(heads_data, tmp_path / "set", "random", 4)
    with pytest.raises(PairstillError, match="already holds a run"):
        distill(heads_data, tmp_path / "set", "random", 4)
    with pytest.raises(PairstillError, match="pairs: 4 then, 5 now"):
        distill(heads_data, tmp_path / "set", "random", 5, resume=True)
    again = distill(heads_data, tmp_path / "set", "random", 4, resume=True)
    assert len(again) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": 1}, "--pairs must be at least 2"),
        ({"pairs": 10_000}, "more than the 96 training images"),
        ({"method": "mdn"}, "unknown method 'mdn'. Did you mean 'mdm'"),
        ({"protocol": "claen"}, "unknown protocol 'claen'. Did you mean 'clean'"),
        ({"protocol": "mdm", "method": "random"}, "protocol 'mdm' trains the image backbone"),
        ({"method": "mdm"}, "needs experts: give --bank"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(arguments, message, heads_data, tmp_path):
    with pytest.raises(PairstillError, match=message):
        distill(heads_data, tmp_path / "set", **{"method": "random", "pairs": 4, **arguments})
    assert not (tmp_path / "set").exists()


def test_divergence_stops_at_the_last_good_state(heads_data, heads_bank, tmp_path):
    settings = replace(SHORT, image_lr=1e9)
    with pytest.raises(
        PairstillError, match=r"diverged in iteration 1: .* Lower --settings.image-lr and --settings.text-lr"
    ):
        distill(heads_data, tmp_path / "set", "mdm", 4, heads_bank, settings=settings)
    run = Run(tmp_path / "set/run", json.loads((tmp_path / "set/run/run.json").read_text())["config"], resume=True)
    tensors, state = run.load_checkpoint()
    assert state["done"] == 0
    assert torch.isfinite(tensors["images"]).all()
    assert not (tmp_path / "set/distilled.json").exists()


def test_a_nan_loss_changes_nothing():
    pairs = SyntheticPairs(torch.ones(2, 3, 4, 4), torch.ones(2, 5), 1.0, 1.0, 0.5)
    with pytest.raises(Diverged, match="the loss was nan"):
        pairs.update((pairs.images.sum() + pairs.texts.sum()) * float("nan"), clip=1.0)
    assert torch.equal(pairs.images.detach(), torch.ones(2, 3, 4, 4))


def test_the_gradient_of_all_pairs_together_is_clipped():
    pairs = SyntheticPairs(torch.zeros(2, 3, 4, 4), torch.zeros(2, 5), image_lr=1.0, text_lr=1.0, momentum=0.0)
    pairs.update(1000 * (pairs.images.sum() + pairs.texts.sum()), clip=1.0)
    moved = torch.cat([pairs.images.detach().flatten(), pairs.texts.detach().flatten()])
    assert moved.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_updates_are_sgd_with_momentum():
    pairs = SyntheticPairs(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2), image_lr=2.0, text_lr=3.0, momentum=0.5)
    for _ in range(2):
        pairs.update(0.1 * pairs.images.sum() + 0.1 * pairs.texts.sum(), clip=10.0)
    torch.testing.assert_close(pairs.images.detach(), torch.full((1, 3, 2, 2), -2.0 * (0.1 + 0.15)))
    torch.testing.assert_close(pairs.texts.detach(), torch.full((1, 2), -3.0 * (0.1 + 0.15)))


def test_updates_are_adam_where_asked_for_and_go_on_from_a_saved_state():
    first, second = torch.randn(2, 3, 4, 4), torch.randn(2, 5)

    def fresh():
        return SyntheticPairs(first, second, image_lr=0.1, text_lr=0.2, momentum=0.9, adam=True)

    def go(pairs, steps):
        for factor in steps:
            pairs.scale_lrs(factor)
            pairs.update((pairs.images**2).sum() + (pairs.texts**3).sum(), clip=1e9)

    whole, part = fresh(), fresh()
    go(whole, [1.0, 0.5, 0.25])
    go(part, [1.0])
    later = fresh()
    later.load_state(part.state())
    go(later, [0.5, 0.25])
    assert torch.equal(whole.images, later.images)
    assert torch.equal(whole.texts, later.texts)
    images, texts = first.clone().requires_grad_(), second.clone().requires_grad_()
    adam = torch.optim.Adam([{"params": [images], "lr": 0.1}, {"params": [texts], "lr": 0.2}])
    for factor in [1.0, 0.5, 0.25]:
        adam.param_groups[0]["lr"], adam.param_groups[1]["lr"] = factor * 0.1, factor * 0.2
        adam.zero_grad()
        ((images**2).sum() + (texts**3).sum()).backward()
        adam.step()
    torch.testing.assert_close(whole.images, images)
    torch.testing.assert_close(whole.texts, texts)


def test_the_longest_step_of_adam_is_seen_coming():
    """Without momentum, a gradient after many zeros is followed for 31.6 step sizes."""
    pairs = SyntheticPairs(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2), 400.0, 400.0, momentum=0.0, adam=True)
    for _ in range(5000):
        pairs.update(0 * (pairs.images.sum() + pairs.texts.sum()), clip=1e9)
    with pytest.raises(Diverged, match="would have become"):
        pairs.update(pairs.images.sum() + pairs.texts.sum(), clip=1e9)
    assert not pairs.images.any()


def test_no_step_of_adam_is_longer_than_the_bound_and_growing_gradients_come_near_it():
    pairs = SyntheticPairs(torch.zeros(1, 3, 2, 2), torch.zeros(1, 2, dtype=torch.float64), 1.0, 1.0, 0.9, adam=True)
    bound, longest, growth = pairs._adam_speed, 0.0, ADAM_BETA / 0.9
    for step in range(8000):
        before = pairs.texts.detach().clone()
        pairs.update(max(0.0, growth ** (step - 7990)) * pairs.texts.sum(), clip=1e99)
        longest = max(longest, (pairs.texts.detach() - before).abs().max().item())
    assert 0.95 * bound < longest <= bound
    assert SyntheticPairs(pairs.images, pairs.texts, 1.0, 1.0, 0.9999, adam=True)._adam_speed == math.inf


def test_pictures_that_take_turns_move_alone_and_go_on_from_a_saved_state():
    first, texts = torch.randn(5, 3, 2, 2), torch.randn(5, 4)

    def fresh():
        pairs = SyntheticPairs(first, texts, image_lr=0.1, text_lr=0.2, momentum=0.9, adam=True, blocks=2)
        pairs.kept["seen"] = torch.zeros(5)
        return pairs

    def go(pairs, turns):
        for turn in turns:
            pairs.kept["seen"] += turn + 1
            pairs.update((pairs.pixels(torch.device("cpu"), turn) ** 2).sum() + (pairs.texts**2).sum(), clip=1e9)

    whole, part, later = fresh(), fresh(), fresh()
    go(part, [0])
    assert torch.equal(part.images[3:], first[3:])
    assert not torch.equal(part.images[:3], first[:3])
    later.load_state(part.state())
    go(later, [1, 0])
    go(whole, [0, 1, 0])
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name])
    alone = first[3:].clone().requires_grad_()  # the second part knows of one step only
    adam = torch.optim.Adam([alone], lr=0.1)
    (alone**2).sum().backward()
    adam.step()
    torch.testing.assert_close(whole.values()["images"][3:], alone.detach())


def test_the_best_check_is_chosen_not_the_last(heads_data, tmp_path):
    from pairstill.distillation.contract import Context
    from pairstill.training.recall import Recall

    scores = iter([1.0, 5.0, 3.0])
    context = Context(
        "test", heads_data.encoded(), 2, 0, None, Run(tmp_path, {}), score=lambda *_: Recall(*([next(scores)] * 6))
    )
    pairs = SyntheticPairs(torch.zeros(2, 3, 4, 4), torch.zeros(2, 5), 1.0, 1.0, 0.0)

    def step(synthetic, iteration):
        synthetic.update(-synthetic.images.sum() - synthetic.texts.sum(), clip=1.0)
        return {"loss": 0.0}

    chosen = optimise(context, pairs, step, iterations=4, check_every=2)
    assert (chosen.iteration, chosen.recall, chosen.checks) == (2, 5.0, [0, 2, 4])
    assert chosen.images.sum() < pairs.images.sum()
