import torch

from pairstill.distillation.functional_student import FunctionalStudent, draw_batches
from pairstill.runtime.seeds import generator
from pairstill.training.losses import weighted_bce
from tests.support.students import problem


def test_batches_go_through_all_pairs_before_any_comes_again():
    batches = draw_batches(10, 5, 5, generator(0))
    assert [len(rows) for rows in batches] == [5] * 5
    assert sorted(torch.cat(batches[:2]).tolist()) == sorted(torch.cat(batches[2:4]).tolist()) == list(range(10))
    assert len(draw_batches(3, 20, 2, generator(0))[0]) == 3


def test_a_matched_student_has_the_loss_that_a_scored_one_trains_with():
    student, segment, data = problem()
    warm, rows = FunctionalStudent(student.model, 0, temperature=0.5), torch.arange(5)
    model = student.model.eval()
    expected = weighted_bce(*model(data.inputs, data.texts), data.similarity, 0.5)
    found = warm.loss(model, segment.start, (data.inputs, data.texts), data, rows, 0)
    torch.testing.assert_close(found, expected)
