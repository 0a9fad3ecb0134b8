from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairstill.data.sources import streaming
from pairstill.errors import PairstillError
from tests.data.sources.conftest import Parquet, opened, picture


def test_streaming_with_limit_resumes(tmp_path: Path, parquet: Parquet, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"image": picture(row), "caption": f"c{row}"} for row in range(30)]
    path = parquet("all.parquet", rows)
    monkeypatch.setattr(streaming, "SHARD_ROWS", 4)
    seen: list[int] = []
    real = streaming._write

    def failing(target: Path, batch: list[dict[str, Any]]) -> None:
        seen.append(len(batch))
        if len(seen) == 3:
            raise PairstillError("disk full")
        real(target, batch)

    monkeypatch.setattr(streaming, "_write", failing)
    with pytest.raises(PairstillError, match="disk full"):
        opened(path, tmp_path, streaming=True, limit=10)
    assert len(list((tmp_path / "cache/streams").rglob("*.parquet"))) == 2
    dataset = opened(path, tmp_path, streaming=True, limit=10)
    assert seen == [4, 4, 2, 2]
    assert list(dataset.captions) == [f"c{row}" for row in range(10)]
    monkeypatch.setattr(streaming, "_rows", lambda *_: pytest.fail("a finished stream is read again"))
    assert len(opened(path, tmp_path, streaming=True, limit=10).images) == 10


def test_a_stream_that_breaks_says_how_to_go_on(
    tmp_path: Path, parquet: Parquet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet("all.parquet", [{"image": picture(0), "caption": "c"}])

    def broken(*_: Any) -> Any:
        raise ConnectionResetError("peer went away")
        yield

    monkeypatch.setattr(streaming, "_rows", broken)
    with pytest.raises(PairstillError, match=r"after 0 rows of train .*peer went away.*run the same command again"):
        opened(path, tmp_path, streaming=True)
