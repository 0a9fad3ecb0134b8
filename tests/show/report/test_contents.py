import pytest

from pairstill.errors import PairstillError
from pairstill.show.report.contents import gather


def test_a_folder_without_anything_is_said(tmp_path):
    with pytest.raises(PairstillError, match="nothing to report"):
        gather(tmp_path)
    with pytest.raises(PairstillError, match="is not a folder"):
        gather(tmp_path / "none")
    (tmp_path / "rows").mkdir()
    with pytest.raises(PairstillError, match="without a table"):
        gather(tmp_path)
