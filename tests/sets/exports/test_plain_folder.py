import pairstill
from pairstill import api
from pairstill.sets.distilled_set import load
from pairstill.sets.exports import export


def test_an_export_can_be_prepared_again_as_a_dataset(sets, tmp_path):
    export(sets / "mdm", tmp_path / "out", "folder")
    data = api.prepare(str(tmp_path / "out"), tmp_path / "data", load_towers(sets), val_fraction=0.2, test_fraction=0.2)
    assert len(data.dataset.images) == 6


def load_towers(sets):
    return pairstill.Towers.from_dict({k: v for k, v in load(sets / "mdm").info["towers"].items() if k != "encoders"})
