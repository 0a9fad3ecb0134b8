"""A small study."""

import yaml

from tests.conftest import TINY_HEADS

TOWERS = TINY_HEADS.to_dict()
BASE = {
    "title": "Small",
    "towers": TOWERS,
    "experts": 2,
    "expert": {"epochs": 2, "batch_size": 16},
    "student": {"epochs": 3, "batch_size": 16},
    "seeds": 2,
}
MDM = {"method": "mdm", "pairs": 6, "settings": {"iterations": 2, "check_every": 2, "real_batch": 8}}


def recipe(folder, rows, name="study.yaml", **changes):
    path = folder / name
    path.write_text(yaml.safe_dump({**BASE, **changes, "rows": rows}))
    return path
