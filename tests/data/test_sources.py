from __future__ import annotations

from pathlib import Path

import pytest

from pairstill.data.sources import SOURCES, SourceSpec, detect, open_source
from pairstill.errors import PairstillError


def test_detects_by_what_is_on_disk(tmp_path: Path) -> None:
    def kind(name: str, *files: str) -> str:
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).touch()
        return detect(str(tmp_path / name))[0]

    assert kind("k", "k/dataset_coco.json") == "karpathy"
    assert kind("k/dataset_coco.json") == "karpathy"
    assert kind("j", "j/metadata.jsonl") == "folder"
    assert kind("c", "c/captions.txt") == "folder"
    assert kind("m", "m/metadata.csv") == "folder"
    assert kind("p", "p/data/a.parquet") == "parquet"
    assert kind("p/data/a.parquet") == "parquet"
    assert kind("t", "t/a-0.tar", "t/a-1.tar") == "webdataset"
    assert kind("t/a-{0..1}.tar") == "webdataset"
    assert kind("t/*.tar") == "webdataset"


def test_detects_names_and_prefixes() -> None:
    assert detect("emoji") == ("emoji", "")
    assert detect("nlphuji/flickr30k") == ("hf", "nlphuji/flickr30k")
    assert detect("hf:owner/name:config") == ("hf", "owner/name:config")
    assert detect("folder:some/where") == ("folder", "some/where")


@pytest.mark.parametrize("source", ["/no/such/folder", "nowhere", "./a/b", "data/missing.json", "a/b/c"])
def test_what_does_not_exist_is_an_error_that_lists_the_kinds(source: str) -> None:
    with pytest.raises(PairstillError, match=r"does not exist\. A source is one of") as caught:
        detect(source)
    assert all(kind in str(caught.value) for kind in SOURCES)


def test_unknown_prefix_and_useless_folder(tmp_path: Path) -> None:
    with pytest.raises(PairstillError, match=r"unknown kind of source 'parquett'\. Did you mean 'parquet"):
        detect("parquett:x")
    with pytest.raises(PairstillError, match="is nothing that can be read as pairs"):
        detect(str(tmp_path))


@pytest.mark.parametrize("source", ["folder:/no/x", "karpathy:/no/x.json", "parquet:/no/x", "webdataset:/no/*.tar"])
def test_a_missing_place_with_prefix_is_named(source: str) -> None:
    with pytest.raises(PairstillError, match=r"/no/(x|\*).*(does not exist|there is no)|there is no /no"):
        open_source(SourceSpec(source))
