import pytest
import torch

from pairstill.errors import PairstillError
from pairstill.runtime.run_folder import Run, read_events


def test_a_checkpoint_comes_back_with_its_state(tmp_path):
    run = Run(tmp_path, {"a": 1})
    assert run.load_checkpoint() is None
    run.event("step", iteration=1)
    run.save_checkpoint({"x": torch.arange(3)}, {"done": 1})
    run.event("step", iteration=2)
    tensors, state = Run(tmp_path, {"a": 1}, resume=True).load_checkpoint()
    assert tensors["x"].tolist() == [0, 1, 2]
    assert state["done"] == 1
    assert [event["iteration"] for event in read_events(tmp_path)] == [1]


def test_a_damaged_checkpoint_is_said(tmp_path):
    run = Run(tmp_path, {})
    run.save_checkpoint({"x": torch.arange(3)}, {"done": 1})
    (tmp_path / "checkpoint.safetensors").write_bytes(b"rubbish")
    with pytest.raises(PairstillError, match=r"checkpoint.safetensors is damaged"):
        run.load_checkpoint()


@pytest.mark.parametrize("where", ["values", "state"])
def test_a_checkpoint_with_one_bit_changed_is_said(where, tmp_path):
    run = Run(tmp_path, {})
    run.save_checkpoint({"x": torch.arange(3)}, {"done": 1})
    path = tmp_path / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[-1 if where == "values" else data.index(b"done") + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PairstillError, match=r"checkpoint.safetensors is damaged.* Delete it"):
        run.load_checkpoint()


def test_a_cut_last_event_is_left_out(tmp_path):
    run = Run(tmp_path, {})
    run.event("a")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind": "b", "sec')
    assert [event["kind"] for event in read_events(tmp_path)] == ["a"]
