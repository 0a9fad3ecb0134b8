import pytest
import torch

from pairstill.experts.packing import BLOCK, LARGEST, pack, unpack


def slowly(values):
    """Block by block, number by number."""
    flat, found = values.reshape(-1).tolist(), []
    for begin in range(0, len(flat), BLOCK):
        block = flat[begin : begin + BLOCK]
        step = torch.tensor(max(map(abs, block)) / LARGEST).to(torch.bfloat16).item()
        numbers = [max(-LARGEST, min(LARGEST, round(value / step))) if step else 0 for value in block]
        found += [number * step for number in numbers]
    return torch.tensor(found).reshape(values.shape)


@pytest.mark.parametrize("shape", [(), (1,), (63,), (64,), (65,), (5, 13), (3, 7, 11)])
def test_what_is_unpacked_is_the_nearest_of_63_numbers(shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-3
    torch.testing.assert_close(unpack(*pack(values), values.shape), slowly(values))


def test_it_takes_six_bits_a_number_and_sixteen_a_block():
    codes, scales = pack(torch.randn(10 * BLOCK))
    assert codes.dtype == torch.uint8
    assert codes.numel() == 10 * BLOCK * 6 // 8
    assert scales.numel() * scales.element_size() == 20


def test_the_error_is_some_hundredths_of_the_spread():
    values = torch.randn(100_000)
    error = unpack(*pack(values), values.shape) - values
    assert error.square().mean().sqrt() < 0.03


def test_zeros_stay_zeros_and_each_block_has_its_own_scale():
    values = torch.cat([torch.zeros(BLOCK), torch.full((BLOCK,), 1e-6), torch.full((BLOCK,), 1e3)])
    found = unpack(*pack(values), values.shape)
    assert not found[:BLOCK].any()
    torch.testing.assert_close(found, values, rtol=0.01, atol=0)
