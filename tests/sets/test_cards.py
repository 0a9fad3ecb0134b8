import yaml

from pairstill.sets.cards import licence_of
from pairstill.sets.exports import export


def head_of(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def test_cards_have_what_a_hub_reads(sets, tmp_path):
    export(sets / "mdm", tmp_path / "out", "hf")
    head = head_of(tmp_path / "out")
    assert head["size_categories"] == ["n<1K"] and head["task_categories"] == ["image-to-text", "text-to-image"]
    assert head["configs"][0]["data_files"][0] == {"split": "train", "path": "data/train-*"}
    text = (tmp_path / "out" / "README.md").read_text()
    assert "## Scores" in text and "| clean |" in text and "## Limits" in text and "| kernel | geodesic |" in text
    assert head_of(sets / "mdm")["pretty_name"].startswith("6 distilled pairs of")
    assert licence_of("Apache-2.0") == {"license": "apache-2.0"}
    assert licence_of("ask me")["license"] == "other" and licence_of(None) == {"license": "unknown"}
