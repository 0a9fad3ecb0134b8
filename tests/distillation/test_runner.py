import pytest

from pairstill.errors import PairstillError
from tests.support.distilling import distill


def test_a_folder_in_use_or_other_settings_are_refused(heads_data, heads_bank, tmp_path):
    distill(heads_data, tmp_path / "set", "random", 4)
    with pytest.raises(PairstillError, match="already holds a run"):
        distill(heads_data, tmp_path / "set", "random", 4)
    with pytest.raises(PairstillError, match="pairs: 4 then, 5 now"):
        distill(heads_data, tmp_path / "set", "random", 5, resume=True)
    again = distill(heads_data, tmp_path / "set", "random", 4, resume=True)
    assert len(again) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pairs": 1}, "--pairs must be at least 2"),
        ({"pairs": 10_000}, "more than the 96 training images"),
        ({"method": "mdn"}, "unknown method 'mdn'. Did you mean 'mdm'"),
        ({"protocol": "claen"}, "unknown protocol 'claen'. Did you mean 'clean'"),
        ({"protocol": "mdm", "method": "random"}, "protocol 'mdm' trains the image backbone"),
        ({"method": "mdm"}, "needs experts: give --bank"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(arguments, message, heads_data, tmp_path):
    with pytest.raises(PairstillError, match=message):
        distill(heads_data, tmp_path / "set", **{"method": "random", "pairs": 4, **arguments})
    assert not (tmp_path / "set").exists()
