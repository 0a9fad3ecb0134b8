import torch


def test_whoever_computes_on_a_gpu_computes_what_repeats(heads_data, monkeypatch):
    """Also in processes that a launcher started: they come by here, and not where the device was asked for."""
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *place: self)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    heads_data.encoded()
    assert not torch.backends.cudnn.deterministic
    heads_data.encoded(device="cuda")
    assert torch.backends.cudnn.deterministic


def test_real_pairs_as_synthetic_pixels_have_the_cached_features(heads_data):
    encoded = heads_data.encoded()
    split = encoded.split("train")
    inputs = encoded.to_inputs(encoded.pictures(split.images[:7]))
    torch.testing.assert_close(inputs, encoded.image_features[split.images[:7]], rtol=1e-4, atol=1e-5)
