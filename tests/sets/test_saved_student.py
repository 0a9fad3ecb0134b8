import pytest
import torch

import pairstill
from pairstill import api
from pairstill.cli.main import main
from pairstill.errors import PairstillError
from pairstill.runtime.files import read_manifest, write_manifest
from pairstill.sets.saved_student import load_student
from pairstill.training.student_training import embed
from pairstill.training.training_recipe import Recipe

QUICK = Recipe(epochs=3, momentum=0.9, batch_size=16)


@pytest.mark.parametrize("towers", ["heads", "full"])
def test_a_student_says_the_same_after_a_round_trip_and_as_in_its_evaluation(towers, request, tmp_path):
    data = request.getfixturevalue(f"{towers}_data")
    made = api.distill(data, tmp_path / "set", "random", 6)
    kept = pairstill.train_student(made, data, tmp_path / "student", student=QUICK)
    loaded = load_student(tmp_path / "student")
    encoded, test = data.encoded(), data.encoded().split("test")
    images, texts = embed(kept.model, test.pairs.inputs, test.pairs.texts)
    torch.testing.assert_close(loaded.encode_pixels(encoded.pictures(test.images)), images, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(loaded.encode_texts(test.captions), texts, rtol=1e-3, atol=1e-4)
    assert loaded.score == kept.score and 0 < kept.score["mean"] <= 100
    assert loaded.made_from["pairs"] == 6


def test_pictures_can_be_files_or_bytes(heads_data, tmp_path):
    from PIL import Image

    kept = pairstill.train_student("full", heads_data, tmp_path / "student", student=QUICK)
    file = tmp_path / "a.png"
    Image.new("RGB", (50, 40), (200, 30, 30)).save(file)
    both = kept.encode_images([file, file.read_bytes()])
    assert torch.equal(both[0], both[1])
    assert both.norm(dim=1) == pytest.approx(1, abs=1e-5)
    with pytest.raises(PairstillError, match=r"missing\.png can't be read"):
        kept.encode_images([tmp_path / "missing.png"])
    with pytest.raises(PairstillError, match="the image"):
        kept.encode_images([b"not an image"])
    assert "all real pairs" in (tmp_path / "student" / "README.md").read_text()


def test_a_student_that_was_tampered_with_is_refused(heads_data, tmp_path, capsys):
    api.distill(heads_data, tmp_path / "set", "random", 6)
    command = ["train", str(tmp_path / "set"), "--data", str(heads_data.folder), "--out", str(tmp_path / "s")]
    assert main([*command, "--student.epochs", "2"]) == 0
    assert "mean recall" in capsys.readouterr().out
    assert main(command) == 2
    assert "already holds a student" in capsys.readouterr().err
    record = read_manifest(tmp_path / "s/student.json")

    def changed(**values):
        write_manifest(tmp_path / "s/student.json", {**record, **values})
        return tmp_path / "s"

    with pytest.raises(PairstillError, match="newer pairstill"):
        load_student(changed(format=9))
    with pytest.raises(PairstillError, match="other weights"):
        load_student(changed(encoders={**record["encoders"], "text": "x"}))
    with pytest.raises(PairstillError, match="was changed"):
        load_student(changed(sha256="x"))
    with pytest.raises(PairstillError, match="does not hold the parameters"):
        load_student(changed(towers={**record["towers"], "embed_dim": 8}))
    with pytest.raises(PairstillError, match=r"no student\.json"):
        load_student(tmp_path)
