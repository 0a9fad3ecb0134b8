import torch


def test_whoever_computes_on_a_gpu_computes_what_repeats(heads_data, monkeypatch):
    """Also in processes that a launcher started: they come by here, and not where the device was asked for."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *place: self)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    heads_data.encoded()
    assert not torch.backends.cudnn.deterministic
    heads_data.encoded(device="cuda")
    assert torch.backends.cudnn.deterministic
