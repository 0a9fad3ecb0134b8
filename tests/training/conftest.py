import torch


def identity(count):
    """Links that join each image to one text."""
    return torch.stack([torch.arange(count), torch.arange(count)], 1)
