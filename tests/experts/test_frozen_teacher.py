import pytest
import torch

from pairstill.experts.frozen_teacher import Teacher


@pytest.mark.parametrize("towers", ["heads", "full"])
def test_a_teacher_sees_what_the_model_of_its_weights_sees_and_leaves_gradients_to_what_it_sees(towers, request):
    encoded = request.getfixturevalue(f"{towers}_data").encoded()
    split, rows = encoded.split("val"), torch.arange(6)
    inputs, texts = split.pairs.inputs.take(rows), split.pairs.texts[rows]
    teacher = Teacher(encoded)
    for seed in (1, 2):  # the weights are swapped again and again
        model = encoded.new_model(seed).eval()
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.mul_(1 + 0.01 * (number % 5))
        ours, theirs = (inputs.clone().requires_grad_() for _ in range(2))
        teacher.load({name: value.detach() for name, value in model.named_parameters()})
        found, expected = teacher(ours, texts), model(theirs, texts)
        for vectors, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(vectors, wanted, rtol=1e-3, atol=1e-4)
        for images in (found[0], expected[0]):
            (images * torch.arange(images.shape[1])).sum().backward()
        assert (ours.grad - theirs.grad).norm() < 1e-3 * theirs.grad.norm()
        assert not found[1].requires_grad  # of texts that need none, frozen weights give none
