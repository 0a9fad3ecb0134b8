import torch

from pairstill.features.training_pairs import TensorInputs
from pairstill.runtime.seeds import generator

ROWS = torch.tensor([4, 0, 4])


def noisy(chosen, random):
    return chosen + torch.rand(chosen.shape, generator=random)


def test_rows_come_as_they_were_asked_for():
    matrix = torch.randn(6, 2)
    inputs = TensorInputs(matrix)
    assert len(inputs) == 6
    assert torch.equal(inputs.take(ROWS), matrix[ROWS])
    assert torch.equal(inputs.take(ROWS, generator(0)), matrix[ROWS])  # nothing to augment them with


def test_inputs_are_augmented_only_with_a_generator_and_by_it_alone():
    matrix = torch.randn(6, 2)
    inputs = TensorInputs(matrix, noisy)
    assert torch.equal(inputs.take(ROWS), matrix[ROWS])
    augmented = inputs.take(ROWS, generator(0))
    assert (augmented > matrix[ROWS]).all()
    assert torch.equal(augmented, inputs.take(ROWS, generator(0)))
    assert not torch.equal(augmented, inputs.take(ROWS, generator(1)))
