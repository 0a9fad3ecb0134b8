from __future__ import annotations

import json

import pytest

from pairstill.data.sources import SourceSpec
from pairstill.errors import PairstillError


def test_spec_survives_json() -> None:
    spec = SourceSpec("emoji", limit=5, on_bad="skip", val_fraction=0.2)
    assert SourceSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": " "}, "source is empty"),
        ({"source": "x", "val_fraction": 0.0}, "val_fraction is 0.0"),
        ({"source": "x", "test_fraction": 1.5}, "test_fraction is 1.5"),
        ({"source": "x", "val_fraction": 0.5, "test_fraction": 0.5}, "nothing is left to train on"),
        ({"source": "x", "limit": 0}, "limit is 0"),
        ({"source": "x", "on_bad": "skp"}, "Did you mean 'skip'"),
        ({"source": "x", "capton_column": "c"}, "Did you mean 'caption_column'"),
        ({}, "needs 'source'"),
    ],
)
def test_spec_refuses(values: dict[str, object], message: str) -> None:
    with pytest.raises(PairstillError, match=message):
        SourceSpec.from_dict(values)
