from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pairstill.towers import torchvision_shim
from pairstill.towers.torchvision_shim import ensure_torchvision

MISSING = RuntimeError("operator torchvision::nms does not exist")


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch):
    """`importing(*errors)`: an import of torchvision that fails with these, one after another, then works."""
    loaded = {"torchvision": 1, "torchvision.ops": 2, "torchvision_of_others": 3, "torch": 4}
    tries: list[str] = []

    def start(*errors: Exception) -> tuple[list[str], dict[str, int]]:
        left = list(errors)

        def import_module(name: str) -> None:
            tries.append(name)
            if left:
                raise left.pop(0)

        monkeypatch.setattr(torchvision_shim, "importlib", SimpleNamespace(import_module=import_module))
        monkeypatch.setattr(torchvision_shim, "sys", SimpleNamespace(modules=loaded))
        return tries, loaded

    return start


def test_torchvision_is_there_afterwards_whatever_build_it_is() -> None:
    pytest.importorskip("timm")
    ensure_torchvision()
    import torchvision

    assert torchvision.__version__ and hasattr(torch.ops.torchvision, "nms")


def test_an_import_that_failed_for_want_of_operators_is_forgotten_and_tried_again(importing) -> None:
    tries, loaded = importing(MISSING)
    ensure_torchvision.__wrapped__()
    assert tries == ["torchvision", "torchvision"]
    assert set(loaded) == {"torchvision_of_others", "torch"}
    assert hasattr(torch.ops.torchvision, "nms") and hasattr(torch.ops.torchvision, "qnms")


def test_one_that_works_or_is_not_installed_is_tried_once(importing) -> None:
    tries, loaded = importing()
    ensure_torchvision.__wrapped__()
    assert (len(tries), len(loaded)) == (1, 4)
    tries, loaded = importing(ImportError("no module"))
    ensure_torchvision.__wrapped__()
    assert (len(tries), len(loaded)) == (2, 4)


def test_any_other_error_is_passed_on(importing) -> None:
    importing(RuntimeError("out of luck"))
    with pytest.raises(RuntimeError, match="out of luck"):
        ensure_torchvision.__wrapped__()
