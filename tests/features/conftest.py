import pytest

from tests.conftest import write_shapes


@pytest.fixture
def own_shapes(tmp_path):
    return write_shapes(tmp_path / "shapes", 40)
