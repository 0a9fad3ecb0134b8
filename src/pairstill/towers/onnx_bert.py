"""A BERT that was exported to ONNX, as a folder that transformers loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pairstill.errors import PairstillError
from pairstill.runtime.files import write_tensors

TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def read_onnx_bert(path: Path) -> dict[str, Tensor]:
    """The weights under the names of transformers' `BertModel`.

    Embeddings, norms and biases kept their names in the export. The matrix of a linear layer lost its name and was
    transposed: the node that multiplies by it has the layer's path.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise PairstillError("weights that come as ONNX need one more package: pip install 'pairstill[onnx]'") from None
    graph = onnx.load(path).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    found = {name: value for name, value in arrays.items() if name.startswith(("embeddings.", "encoder."))}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays and arrays[node.input[1]].ndim == 2:
            layer = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            found[f"{layer}.weight"] = arrays[node.input[1]].T
    return {name: torch.from_numpy(np.array(value)) for name, value in found.items()}


def convert(source: Path, target: Path) -> None:
    """From a folder with `onnx/model.onnx`, config and tokenizer to one with safetensors."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(source / name, target / name)
    weights = read_onnx_bert(source / "onnx" / "model.onnx")
    width = weights["embeddings.LayerNorm.weight"].numel()
    # Exported without its pooler, which nothing here reads; transformers would draw one, another each time.
    weights |= {"pooler.dense.weight": torch.zeros(width, width), "pooler.dense.bias": torch.zeros(width)}
    write_tensors(target / "model.safetensors", weights, {"format": "pt"})
