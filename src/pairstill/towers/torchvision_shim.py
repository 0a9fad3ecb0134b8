"""Make torchvision importable beside a CPU build of torch.

timm and transformers both import torchvision. Its PyPI wheel is compiled for the CUDA build of torch; beside a CPU
build its C++ library does not load, and the import then dies on "operator torchvision::nms does not exist" although
nothing here ever calls that operator. Declaring the operator's signature is enough for the import to go through.
"""

from __future__ import annotations

import functools
import importlib
import sys

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@functools.cache
def ensure_torchvision() -> None:
    """Import torchvision; only where that fails for want of its operators, declare them and import again."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # not installed: whoever needs it says so
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _forget_half_imported()
        _declare_operators()
        importlib.import_module("torchvision")


def _forget_half_imported() -> None:
    """Drop what the failed import left behind; the next import would take it for the real thing."""
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]


@functools.cache
def _declare_operators() -> torch.library.Library:
    """Declare `nms` and `qnms`. The cache keeps the library alive: its operators vanish with it."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            library.define(operator + _SIGNATURE)
    return library
