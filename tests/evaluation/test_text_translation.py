import numpy as np
import torch

from pairstill.evaluation.text_translation import RIDGE, translate


def captions(count=400, ours=6, theirs=9, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, ours, generator=random) + 3
    return x, x @ torch.randn(ours, theirs, generator=random) + torch.randn(theirs, generator=random)


def test_what_is_a_linear_map_is_found_also_away_from_the_captions():
    x, y = captions()
    inner, outer = translate(x, x, y), translate(x.mean(0) + 10 * (x - x.mean(0)), x, y)
    torch.testing.assert_close(inner, y, rtol=0, atol=0.3)  # the ridge pulls by one part in a hundred
    torch.testing.assert_close(outer, y.mean(0) + 10 * (y - y.mean(0)), rtol=0, atol=3)


def test_it_is_the_ridge_regression_of_the_normal_equations():
    x, y = captions(40)
    y = y + torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    a, b = x.double().numpy(), y.double().numpy()
    a, b = a - a.mean(0), b - b.mean(0)
    ridge = RIDGE * np.mean(np.sum(a**2, 0))
    stacked = np.linalg.lstsq(np.vstack([a, np.sqrt(ridge) * np.eye(6)]), np.vstack([b, np.zeros((6, 9))]), rcond=None)
    expected = (x[:3].double().numpy() - x.double().mean(0).numpy()) @ stacked[0] + y.double().mean(0).numpy()
    np.testing.assert_allclose(translate(x[:3], x, y).numpy(), expected, rtol=1e-4)


def test_more_features_than_captions_is_no_trouble():
    x, y = captions(count=4)
    assert translate(x, x, y).isfinite().all()
