import json
from dataclasses import replace
from typing import get_args

import pytest
import torch

from pairstill.distillation.distribution_matching import Init
from pairstill.methods.distributions import mdm
from pairstill.training.losses import info_nce, kernel_energy
from tests.support.distilling import distill
from tests.support.quick_settings import SHORT


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
