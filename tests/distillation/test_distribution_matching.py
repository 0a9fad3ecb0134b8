import pytest
import torch

from pairstill.distillation.distribution_matching import encode_real_batch
from pairstill.errors import PairstillError
from pairstill.experts.frozen_teacher import Teacher
from pairstill.methods.distributions import dm
from pairstill.runtime.seeds import generator
from pairstill.training.student_training import embed


@pytest.mark.parametrize(
    "change", [{"iterations": 0}, {"merged_experts": 1}, {"real_batch": 0}, {"clip": 0.0}, {"momentum": 1.0}]
)
def test_settings_that_cannot_work_are_refused(change):
    with pytest.raises(PairstillError, match=f"settings.{next(iter(change))} must be"):
        dm.Settings(**change)


def test_a_batch_of_real_pairs_is_different_pairs_as_the_teacher_sees_them(heads_data):
    encoded = heads_data.encoded()
    train, teacher = encoded.split("train"), Teacher(encoded)
    model = encoded.new_model(3)
    teacher.load(dict(model.named_parameters()))
    images, texts = embed(model, train.pairs.inputs, train.pairs.texts)
    known = torch.cat([images[train.pairs.links[:, 0]], texts[train.pairs.links[:, 1]]], dim=1)
    for size, expected in ((20, 20), (10_000, len(known))):
        drawn = torch.cat(encode_real_batch(train, teacher, size, generator(0)), dim=1)
        distances, rows = torch.cdist(drawn, known, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1)
        assert not drawn.requires_grad
        assert distances.max() < 1e-3
        assert len(set(rows.tolist())) == len(drawn) == expected
