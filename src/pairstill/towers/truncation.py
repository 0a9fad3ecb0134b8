"""An image network cut in two: a frozen trunk, and a tail of its last layers that can be trained by itself.

The network is traced once. It can be cut wherever a single tensor carries all that the rest of it reads: between
blocks, not inside a residual one. The trunk gives that tensor as a row, so that it can be kept like any feature.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from pairstill.errors import PairstillError
from pairstill.runtime.files import digest_of
from pairstill.towers.image_encoder import ImageEncoder, freeze_norm_statistics


class Trunk(ImageEncoder):
    """The first layers of an image encoder: normalised pixels [N, 3, H, W] → rows [N, C·h·w] of what the cut carries.

    Attributes:
        shape: Of what the cut carries for one image, (C, h, w).
    """

    def __init__(self, whole: ImageEncoder, network: nn.Module, shape: tuple[int, ...], cut: str) -> None:
        nn.Module.__init__(self)
        self.network, self.shape = network, shape
        self.name, self.mean, self.std = f"{whole.name}, first layers", whole.mean, whole.std
        self.width = int(torch.Size(shape).numel())
        self.fingerprint = digest_of(["trunk", whole.fingerprint, cut])
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """See the class."""
        return super().forward(pixels).flatten(1)


class Tail(nn.Module):
    """The last layers of an image encoder: rows [N, C·h·w] → [N, width]. Its parameters keep the encoder's names.

    Batch-norm statistics never change, as in the whole encoder.
    """

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.shape = network, shape
        self.train()

    def forward(self, rows: Tensor) -> Tensor:
        """See the class."""
        maps = rows.unflatten(1, self.shape)
        return cast(
            Tensor, self.network(maps.contiguous(memory_format=torch.channels_last) if maps.dim() == 4 else maps)
        )

    def train(self, mode: bool = True) -> Tail:
        """As `nn.Module.train`, with batch norms kept in eval mode."""
        super().train(mode)
        freeze_norm_statistics(self)
        return self


def truncate(encoder: ImageEncoder, image_size: int, layers: int) -> tuple[Trunk, Tail]:
    """An encoder as trunk and tail; the tail has at least the last `layers` layers with weights.

    Both have copies of the encoder's weights.

    Raises:
        PairstillError: The network can't be traced, or can't be cut so far back.
    """
    network = copy.deepcopy(encoder.network).eval()
    try:
        graph = _LayerTracer().trace(network)
    except Exception as error:  # tracing runs the network's own code on symbols, and that may raise anything
        raise PairstillError(f"image encoder '{encoder.name}' can't be cut into trunk and tail: {error}.") from error
    nodes = list(graph.nodes)
    cut = _last_cut_before(network, nodes, layers)
    if cut is None:
        raise PairstillError(f"image encoder '{encoder.name}' can't be cut before its last {layers} layers.")
    place = nodes.index(cut)
    trunk = _part(network, nodes[: place + 1], None)
    tail = _part(network, nodes[place + 1 : -1], cut)
    with torch.no_grad():
        shape = tuple(trunk(torch.zeros(1, 3, image_size, image_size)).shape[1:])
    return Trunk(encoder, trunk, shape, cut.name), Tail(tail, shape)


class _LayerTracer(fx.Tracer):
    """A tracer that leaves every layer whole: those with parameters of their own, and those of libraries."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = any(True for _ in m.parameters(recurse=False))
        return own or not any(True for _ in m.children()) or super().is_leaf_module(m, module_qualified_name)


def _last_cut_before(network: nn.Module, nodes: list[fx.Node], layers: int) -> fx.Node | None:
    """The last node that alone carries all that comes after it, with `layers` layers behind it."""
    place = {node: row for row, node in enumerate(nodes)}
    last_use = {node: max((place[user] for user in node.users), default=-1) for node in nodes}
    behind = 0
    for row in range(len(nodes) - 2, 0, -1):
        node = nodes[row]
        alone = all(last_use[other] <= row for other in nodes[:row] if other.op != "get_attr")
        if alone and behind >= layers and node.op != "get_attr":
            return node
        behind += node.op == "call_module" and _has_weight(network.get_submodule(str(node.target)))
    return None


def _has_weight(layer: nn.Module) -> bool:
    """Whether a layer has a weight matrix; norms and activations have none."""
    return any(parameter.dim() > 1 for parameter in layer.parameters())


def _part(network: nn.Module, nodes: list[fx.Node], entry: fx.Node | None) -> nn.Module:
    """Some consecutive nodes as a module; `entry` is the node before them, whose value they read."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {} if entry is None else {entry: graph.placeholder("rows")}
    for node in nodes:
        known[node] = graph.node_copy(node, lambda other: known[other])
    graph.output(known[nodes[-1]])
    return cast(Any, fx.GraphModule(network, graph))  # type: ignore[no-any-return]
