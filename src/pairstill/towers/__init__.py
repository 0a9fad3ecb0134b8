"""The two towers: image and text encoders, heads, the model that joins them, and its fast frozen form."""

from pairstill.towers.blocks import Passes
from pairstill.towers.fold import FoldedNetwork, fold
from pairstill.towers.heads import LinearHead, ProjectionHead, build_head
from pairstill.towers.image import ImageEncoder, freeze_norm_statistics, load_image_encoder
from pairstill.towers.model import Towers, TwoTower, build_heads, build_model
from pairstill.towers.text import TextEncoder, load_text_encoder
from pairstill.towers.torchvision_shim import ensure_torchvision
from pairstill.towers.weights import IMAGE_PRESETS, TEXT_PRESETS, resolve_image, resolve_text

__all__ = [
    "IMAGE_PRESETS",
    "TEXT_PRESETS",
    "FoldedNetwork",
    "ImageEncoder",
    "LinearHead",
    "Passes",
    "ProjectionHead",
    "TextEncoder",
    "Towers",
    "TwoTower",
    "build_head",
    "build_heads",
    "build_model",
    "ensure_torchvision",
    "fold",
    "freeze_norm_statistics",
    "load_image_encoder",
    "load_text_encoder",
    "resolve_image",
    "resolve_text",
]
