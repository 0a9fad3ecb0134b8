import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from pairstill.towers import onnx_bert
from pairstill.towers.text_encoder import load_text_encoder
from pairstill.towers.torchvision_shim import ensure_torchvision
from pairstill.towers.weights import TEXT_PRESETS, text_package_folder

ensure_torchvision()

from transformers import BertConfig, BertModel  # noqa: E402 (after the shim)

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


@pytest.fixture(scope="module")
def model():
    """A small BERT that has no pooler, as exports have none."""
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES), add_pooling_layer=False).eval()


@pytest.fixture
def exported(model, tmp_path):
    """Its weights as an export keeps them: matrices transposed and without a name, others with theirs."""
    initializers, nodes = [], []
    for name, value in model.state_dict().items():
        array = value.numpy()
        if array.ndim == 2 and name.startswith("encoder."):
            number, path = f"onnx::MatMul_{len(nodes)}", "/" + name.removesuffix(".weight").replace(".", "/")
            path = path.replace("/layer/", "/layer.")
            initializers.append(numpy_helper.from_array(np.ascontiguousarray(array.T), number))
            nodes.append(helper.make_node("MatMul", ["x", number], [f"y{number}"], name=f"{path}/MatMul"))
        else:
            initializers.append(numpy_helper.from_array(array, name))
    initializers.append(numpy_helper.from_array(np.ones(1, dtype=np.float32), "/Constant"))
    nodes.append(helper.make_node("MatMul", ["q", "k"], ["scores"], name="/encoder/layer.0/attention/self/MatMul"))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 8])
    (tmp_path / "onnx").mkdir()
    onnx.save(helper.make_model(helper.make_graph(nodes, "bert", [x], [], initializers)), tmp_path / "onnx/model.onnx")
    words = text_package_folder("minilm", TEXT_PRESETS["minilm"])
    for name in onnx_bert.TOKENIZER_FILES:
        shutil.copyfile(words / name, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps({**BertConfig(**SIZES).to_dict(), "model_type": "bert"}))
    return tmp_path


@torch.no_grad()
def test_an_export_becomes_the_model_that_it_was_made_of(model, exported, tmp_path):
    (target := tmp_path / "made").mkdir()
    onnx_bert.convert(exported, target)
    encoder = load_text_encoder(str(target), "mean")
    assert encoder.fingerprint == load_text_encoder(str(target), "mean").fingerprint  # nothing in it is drawn
    captions = ["a dog runs", "two children play in the snow"]
    tokens = encoder.tokenizer(captions, padding=True, return_tensors="pt")
    hidden = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    torch.testing.assert_close(encoder.encode(captions), (hidden * mask).sum(1) / mask.sum(1), rtol=1e-4, atol=1e-5)
