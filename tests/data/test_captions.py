import json
import pickle

import numpy as np
import pytest

from pairstill.data import captions
from pairstill.data.captions import ChosenCaptions, StoredCaptions

SAID = ["a dog", 'says "no"', "two\nlines\u2028three", "", "été 犬", "last"]


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_text("".join(json.dumps(text, ensure_ascii=False) + "\n" for text in SAID), encoding="utf-8")
    return path


@pytest.mark.parametrize("at_once", [1, 7, 1 << 24])
def test_stored_captions_are_a_sequence_as_a_list_is(stored, at_once, monkeypatch):
    monkeypatch.setattr(captions, "BYTES_AT_ONCE", at_once)
    found = StoredCaptions(stored)
    assert list(found) == SAID and len(found) == len(SAID)
    assert [found[row] for row in range(-len(SAID), len(SAID))] == SAID + SAID
    assert found[1:5:2] == SAID[1:5:2] and found[-2:] == SAID[-2:] and found[9:] == []
    with pytest.raises(IndexError):
        found[len(SAID)]
    assert list(pickle.loads(pickle.dumps(found))) == SAID


def test_no_captions_are_an_empty_sequence(tmp_path):
    (tmp_path / "none.jsonl").touch()
    assert list(StoredCaptions(tmp_path / "none.jsonl")) == [] == StoredCaptions(tmp_path / "none.jsonl")[:]


def test_chosen_captions_are_those_rows(stored):
    for of in (SAID, StoredCaptions(stored)):
        chosen = ChosenCaptions(of, np.array([4, 0, 4]))
        assert (
            list(chosen) == ["été 犬", "a dog", "été 犬"]
            and chosen[-1] == "été 犬"
            and chosen[1:] == [SAID[0], SAID[4]]
        )
