"""Settings with which a method takes a second."""

from pairstill.methods import METHODS

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
"""Values of the methods that would take longer with their own."""


def settings_of(method):
    return METHODS[method].settings(**SETTINGS.get(method, {}))


SHORT = settings_of("mdm")
