import pytest
import torch

from pairstill.distillation.contract import config_under_new_names, finished, settings_of
from pairstill.errors import PairstillError
from pairstill.methods import METHODS
from pairstill.methods.through_training.rehearsal import Settings


def test_settings_are_the_defaults_but_for_what_is_changed():
    made = settings_of(METHODS["rehearsal"], {"inner_epochs": "7", "image_lr": "1e-3"})
    assert made == Settings(inner_epochs=7, image_lr=0.001)
    assert settings_of(METHODS["rehearsal"], {}) == Settings()
    with pytest.raises(PairstillError, match=r"unknown row 3: setting of mdm 'alhpa'\. Did you mean 'alpha'"):
        settings_of(METHODS["mdm"], {"alhpa": 1}, "row 3")


def test_the_config_of_an_old_run_is_read_under_the_names_of_today():
    old = {"method": "rehearsal", "also": {"x": "1"}, "settings": {"passes": 3, "image_lr": 0.1}}
    new = config_under_new_names(old, Settings)
    assert new["settings"] == {"inner_epochs": 3, "image_lr": 0.1, "trained_layers": 1, "patience": 0}
    assert (new["method"], new["extra_encoders"], "also" in new) == ("rehearsal", {"x": "1"}, False)
    assert config_under_new_names(new, Settings) == new


def test_a_finished_set_says_what_it_was_made_of_and_how(context):
    context = context("herding", count=2, epochs=3)
    pairs, encoded = context.encoded.split("train"), context.encoded
    texts = pairs.pairs.texts[torch.tensor([9, 5])]
    made = finished(pairs, context, torch.zeros(2, 3, 32, 32, requires_grad=True), texts, chosen={"iteration": 4})
    assert not made.images.requires_grad
    assert [near[0] for near in made.captions] == [pairs.captions[9], pairs.captions[5]]
    assert (made.info["method"], made.info["settings"], made.info["seed"]) == ("herding", {"epochs": 3}, 0)
    assert made.info["towers"] == encoded.identity()
    assert made.info["dataset"]["fingerprint"] == encoded.dataset.fingerprint
    assert made.info["dataset"]["training_images"] == 96
    assert made.info["chosen"] == {"iteration": 4}
