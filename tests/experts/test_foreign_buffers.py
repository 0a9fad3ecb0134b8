import pickle

import pytest
import torch

from pairstill import api
from pairstill.errors import PairstillError
from pairstill.experts.bank import parameters_of
from pairstill.methods.distributions import mdm


def trajectories(encoded, experts=2, epochs=3, as_dict=False):
    """Buffers as LoRS writes them: experts x (start + epochs) x parameters, image and text apart."""
    start = parameters_of(encoded.new_model(0))
    image, text = [], []
    for expert in range(experts):
        random = torch.Generator().manual_seed(expert)
        states = [start]
        for _ in range(epochs):
            states.append({n: p + 0.01 * torch.randn(p.shape, generator=random) for n, p in states[-1].items()})
        for target, wanted in ((image, False), (text, True)):
            parts = [{n: p for n, p in s.items() if n.startswith("text_head.") == wanted} for s in states]
            target.append(parts if as_dict else [list(part.values()) for part in parts])
    return image, text


def save(folder, image, text):
    torch.save(image, folder / "img_replay_buffer_0.pt")
    torch.save(text, folder / "txt_replay_buffer_0.pt")
    return [str(folder / "img_replay_buffer_0.pt")], [str(folder / "txt_replay_buffer_0.pt")]


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("kind", ["heads_data", pytest.param("full_data", marks=pytest.mark.slow)])
def test_buffers_become_a_bank_that_distils(kind, as_dict, request, tmp_path):
    data = request.getfixturevalue(kind)
    image, text = trajectories(data.encoded(), as_dict=as_dict)
    bank = api.import_experts(data, tmp_path / "bank", *save(tmp_path, image, text))
    assert bank.experts == [0, 1]
    assert len(bank.checkpoints) == 6
    last = bank.parameters(bank.rows_of(1)[-1])
    values = list(text[1][-1].values()) if as_dict else text[1][-1]
    names = [name for name, _ in data.encoded().new_model(0).named_parameters() if name.startswith("text_head.")]
    for name, value in zip(names, values, strict=True):
        largest = (value - bank.anchor[name]).abs().max().item()
        assert (last[name] - value).abs().max().item() <= 0.02 * largest  # as nearly as six bits can say
    settings = mdm.Settings(iterations=1, check_every=9)
    assert len(api.distill(data, tmp_path / "set", "mdm", 3, bank, settings=settings)) == 3


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


def test_code_in_a_buffer_is_never_run(heads_data, tmp_path, capsys):
    image, text = trajectories(heads_data.encoded())
    images, texts = save(tmp_path, image, text)
    torch.save([Evil()], images[0])
    with pytest.raises(PairstillError, match="not a buffer that can be read safely"):
        api.import_experts(heads_data, tmp_path / "bank", images, texts)
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(PairstillError, match="not a buffer that can be read safely"):
        api.import_experts(heads_data, tmp_path / "bank", [str(tmp_path / "raw.pt")], texts)
    assert "code was run" not in capsys.readouterr().out
    assert not (tmp_path / "bank").exists()


def test_wrong_buffers_say_what_and_where(heads_data, tmp_path):
    image, text = trajectories(heads_data.encoded())
    images, texts = save(tmp_path, image, text)
    with pytest.raises(PairstillError, match="come in pairs"):
        api.import_experts(heads_data, tmp_path / "bank", images, [])
    with pytest.raises(PairstillError, match=r"missing.pt does not exist"):
        api.import_experts(heads_data, tmp_path / "bank", ["missing.pt"], texts)
    image[1][2] = image[1][2][:-1]
    save(tmp_path, image, text)
    with pytest.raises(PairstillError, match=r"expert 1, epoch 2: 5 tensors, but these towers have 6"):
        api.import_experts(heads_data, tmp_path / "bank", images, texts)
    image[1][2] = [torch.zeros(2) for _ in range(6)]
    save(tmp_path, image, text)
    with pytest.raises(PairstillError, match=r"image_head.projection.weight is \(2,\), but these towers have"):
        api.import_experts(heads_data, tmp_path / "bank", images, texts)


def test_experts_that_started_elsewhere_are_noted(heads_data, tmp_path, capsys):
    image, text = trajectories(heads_data.encoded())
    text[1][0] = [value + 1 for value in text[1][0]]
    api.import_experts(heads_data, tmp_path / "bank", *save(tmp_path, image, text))
    assert "did not start from the first one's weights" in " ".join(capsys.readouterr().err.split())


def test_experts_can_not_be_added_to_an_imported_bank(heads_data, tmp_path):
    api.import_experts(heads_data, tmp_path / "bank", *save(tmp_path, *trajectories(heads_data.encoded())))
    with pytest.raises(PairstillError, match="was imported: experts can't be added"):
        api.train_experts(heads_data, tmp_path / "bank", 4)
