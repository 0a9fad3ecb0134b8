import numpy as np

from pairstill.sets.distilled_set import load
from pairstill.sets.exports import export


def test_datasets_loads_the_export_offline(soft, tmp_path):
    from datasets import load_dataset

    export(soft, tmp_path / "hf", "hf")
    export(soft, tmp_path / "folder", "folder")
    pairs = load_dataset(str(tmp_path / "hf"), split="train", cache_dir=str(tmp_path / "cache"))
    assert pairs.column_names == ["image", "caption", "nearest_captions", "text_embedding", "similarity"]
    picture = (load(soft).pictures()[3] * 255).round().permute(1, 2, 0).numpy().astype(np.uint8)
    assert np.array_equal(np.asarray(pairs[3]["image"]), picture)
    np.testing.assert_array_equal(np.float32(pairs[3]["text_embedding"]), load(soft).texts[3].numpy())
    plain = load_dataset("imagefolder", data_dir=str(tmp_path / "folder"), split="train", cache_dir=str(tmp_path / "c"))
    assert plain[0]["text"] == 'a "quoted" caption, with\nnewline, ünïcode 🙂'
