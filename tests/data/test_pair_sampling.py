import torch

from pairstill.data.pair_sampling import LinksByPicture
from pairstill.runtime.seeds import generator
from pairstill.training.training_loop import one_link_per_image


def links(pictures=30, seed=0):
    """One to four captions an image, in no order."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 5, (pictures,), generator=random)
    all_links = torch.stack([torch.arange(pictures).repeat_interleave(counts), torch.arange(int(counts.sum()))], dim=1)
    return all_links[torch.randperm(len(all_links), generator=random)]


def test_a_draw_is_one_link_of_each_picture_and_then_some_of_them():
    """From the same random numbers, and leaving them at the same place: published sets were drawn the slow way."""
    pairs = links()
    for seed, size in ((0, 1), (1, 12), (2, 30), (3, 99)):
        slow, fast = generator(seed), generator(seed)
        every = one_link_per_image(pairs, slow)
        expected = every[torch.randperm(len(every), generator=slow)[:size]]
        assert torch.equal(LinksByPicture(pairs).draw(size, fast), expected)
        assert torch.equal(torch.rand(3, generator=slow), torch.rand(3, generator=fast))


def test_pictures_come_once_with_a_caption_of_their_own_and_all_as_often():
    pairs = links()
    known, by_picture = {tuple(link) for link in pairs.tolist()}, LinksByPicture(pairs)
    times = torch.zeros(len(pairs))
    for seed in range(2000):
        drawn = by_picture.draw(10, generator(seed)).tolist()
        assert len({picture for picture, _ in drawn}) == 10
        assert {tuple(link) for link in drawn} <= known
        for _, caption in drawn:
            times[caption] += 1
    captions = torch.bincount(pairs[:, 0])
    for picture, caption in pairs.tolist():
        expected = 2000 * 10 / 30 / captions[picture].item()
        assert abs(times[caption] - expected) < 5 * expected**0.5
