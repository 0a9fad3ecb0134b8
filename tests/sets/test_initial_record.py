import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.sets.initial_record import FILE, InitialPairs, read_initial_pairs, write_initial_pairs


@pytest.mark.parametrize("cells", [[3, 0], None])
def test_initial_pairs_come_back_as_they_were_kept(cells, tmp_path):
    pictures = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    texts = torch.randn(5, 2).T  # not contiguous
    assert read_initial_pairs(tmp_path) is None
    write_initial_pairs(tmp_path, InitialPairs(pictures, texts, [["été 犬"], ["a", "b"]], cells))
    back = read_initial_pairs(tmp_path)
    assert torch.equal(back.pictures, pictures) and torch.equal(back.texts, texts)
    assert (back.captions, back.cells) == ([["été 犬"], ["a", "b"]], cells)


def test_a_changed_bit_is_refused(tmp_path):
    write_initial_pairs(tmp_path, InitialPairs(torch.zeros(1, 3, 2, 2).byte(), torch.zeros(1, 2), [["a"]], None))
    data = bytearray((tmp_path / FILE).read_bytes())
    data[-1] ^= 1
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(PairstillError, match="is damaged"):
        read_initial_pairs(tmp_path)
