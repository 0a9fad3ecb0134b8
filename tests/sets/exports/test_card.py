import json
from dataclasses import replace

import pytest
import torch
import yaml

from pairstill.sets.exports.card import as_row, export_card, numbers
from tests.sets.exports.conftest import parts


@pytest.mark.parametrize("soft", [False, True])
def test_the_numbers_of_rows_survive_json_to_the_bit(soft):
    made = parts(3, soft)
    rows = [json.loads(json.dumps(as_row(made, row))) for row in range(3)]
    texts, similarity = numbers(rows)
    assert torch.equal(texts, made.texts)
    assert similarity is None if not soft else torch.equal(similarity, made.similarity)
    assert (rows[2]["caption"], rows[2]["nearest_captions"]) == ("ünïcode 2", ["ünïcode 2", "another"])


def test_a_card_says_how_an_export_is_loaded_and_what_it_lost():
    whole = export_card(parts(3), "import something", {"configs": ["here"]})
    assert "import something" in whole and "nothing was clipped" in whole
    assert yaml.safe_load(whole.split("---\n")[1])["configs"] == ["here"]
    clipped = export_card(replace(parts(3), clipped={"share": 0.25, "by": 12.0}), "")
    assert "25.0 % of their values lay outside black...white, by 12 of 255" in clipped
