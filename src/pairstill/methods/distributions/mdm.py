"""MDM: Multimodal Distribution Matching (CVPR 2026), as in the paper.

Each iteration merges a teacher from random experts, encodes real and synthetic pairs with it, and moves the synthetic
pixels and text embeddings down the gradient of

    InfoNCE(synthetic) + 0.8 GKE(u_real, u_synthetic) + 0.8 GKE(g_real, g_synthetic)    (Eq. 11)

with u the agreement and g the discrepancy of a pair's two embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from pairstill.distillation.contract import Context, Method
from pairstill.distillation.distribution_matching import DistributionMatchingSettings, match_distributions
from pairstill.distillation.setting_checks import check_settings
from pairstill.features.encoded_dataset import EncodedSplit
from pairstill.sets.distilled_set import DistilledSet
from pairstill.training.losses import ENERGY_FLOOR, FEATURE_SETS, energy_bracket, energy_root, info_nce


@dataclass(frozen=True)
class Settings(DistributionMatchingSettings):  # noqa: D101
    __doc__ = f"""{(DistributionMatchingSettings.__doc__ or "").rstrip()}
        contrast: Weight of InfoNCE.
        agreement: Weight of the first energy (lambda_agr).
        discrepancy: Weight of the second energy (lambda_dis).
        features: What the energies match: agreement and discrepancy (joint), each modality (singles), or both
            side by side (concat, with the sum of the two weights).
        kernel: The energies' kernel.
        sigma: The kernel's width.
        temperature: Of InfoNCE.
    """

    contrast: float = 1.0
    agreement: float = 0.8
    discrepancy: float = 0.8
    features: Literal["joint", "singles", "concat"] = "joint"
    kernel: Literal["geodesic", "chordal", "laplacian"] = "geodesic"
    sigma: float = 0.5
    temperature: float = 0.07

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {}, ("sigma", "temperature"))


def fit(pairs: EncodedSplit, context: Context) -> DistilledSet:
    """Distil `pairs` into `context.count` synthetic pairs."""
    return match_distributions(pairs, context, objective)


def objective(
    real: tuple[Tensor, Tensor], synthetic: tuple[Tensor, Tensor], settings: Settings
) -> tuple[Tensor, dict[str, float]]:
    """The total loss (Eq. 11) and its terms, from unit vectors (images, texts): real [m, d], synthetic [n, d]."""
    loss = settings.contrast * info_nce(*synthetic, settings.temperature)
    terms = {"contrast": loss.item(), "small_brackets": 0.0}
    matched = FEATURE_SETS[settings.features]
    of_real, of_synthetic = matched(*real), matched(*synthetic)
    weights = [settings.agreement, settings.discrepancy]
    for weight, name in zip(weights if len(of_real) > 1 else [sum(weights)], of_real, strict=True):
        if weight:
            bracket = energy_bracket(of_real[name], of_synthetic[name], settings.sigma, settings.kernel)
            energy = energy_root(bracket)
            loss = loss + weight * energy
            terms[name] = energy.item()
            terms["small_brackets"] += float(bracket.item() <= ENERGY_FLOOR)
    return loss, {"loss": loss.item(), **terms}


METHOD = Method(
    "mdm", "the paper's: match agreement and discrepancy under merged teachers", Settings, fit, needs_bank=True
)
