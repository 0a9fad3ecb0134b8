import torch

from pairstill.runtime.seeds import derive, generator, global_seed


def test_seeds_depend_on_every_part_of_their_path():
    seeds = {derive(0, "a"), derive(1, "a"), derive(0, "b"), derive(0, "a", 1), derive(0, "a", 2)}
    assert len(seeds) == 5
    assert torch.equal(torch.rand(3, generator=generator(1, "x")), torch.rand(3, generator=generator(1, "x")))


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with global_seed(1, "x"):
        torch.rand(10)
    assert torch.equal(before, torch.get_rng_state())
