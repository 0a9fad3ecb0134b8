"""Cards: what a distilled set, or a student trained on one, says of itself, in the form that model hubs read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pairstill.sets.distilled_set import DistilledSet

HUB_LICENCES = {
    *("mit", "apache-2.0", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "odc-by"),
}
"""Licences that a hub knows by these names; any other is `other` there, and told in the text."""

OWN_USAGE = """import pairstill

pairs = pairstill.load("PATH/TO/THIS/FOLDER")  # checks every file's hash
images, texts = pairs[:]"""


def dataset_card(
    made: DistilledSet,
    usage: str = OWN_USAGE,
    note: str = "",
    scores: Sequence[Mapping[str, Any]] = (),
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """The README of a set.

    Args:
        made: The set.
        usage: Python that loads it.
        note: A paragraph on how it was made.
        scores: Rows of `pairstill evaluate`.
        metadata: What a hub should know besides.
    """
    info = defaultdict(str, made.info)
    source = made.info.get("dataset", {})
    name, count = in_line(source.get("name", "an unknown dataset")), len(made)
    head = {
        "pretty_name": f"{count} distilled pairs of {name}",
        **licence_of(source.get("license")),
        "task_categories": ["image-to-text", "text-to-image"],
        "size_categories": ["n<1K" if count < 1000 else "1K<n<10K"],
        "tags": ["dataset-distillation", "image-text-retrieval", "pairstill"],
        **(metadata or {}),
    }
    return _render(
        "dataset.md",
        head,
        count=count,
        name=name,
        source=source,
        info=info,
        towers=made.info.get("towers", {}),
        size=made.images.shape[-1],
        width=made.texts.shape[1],
        usage=usage,
        note=note,
        scores=scores,
    )


def model_card(towers: Mapping[str, Any], made_from: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    """The README of a student: its towers, the `info` of the set that it was trained on, and its recall."""
    source = made_from.get("dataset", {})
    head = {
        **licence_of(source.get("license")),
        "pipeline_tag": "feature-extraction",
        "tags": ["image-text-retrieval", "dataset-distillation", "pairstill"],
    }
    pairs = made_from.get("pairs")
    return _render(
        "model.md",
        head,
        name=in_line(source.get("name", "an unknown dataset")),
        trained_on=f"{pairs} distilled pairs" if pairs else "all real pairs",
        towers=towers,
        score=score,
        licence=source.get("license") or "unknown",
    )


def licence_of(text: str | None) -> dict[str, str]:
    """A source's licence as a hub's metadata has it."""
    name = (text or "").strip().lower()
    if name in HUB_LICENCES:
        return {"license": name}
    return {"license": "other", "license_name": "licence-of-the-source"} if name else {"license": "unknown"}


def in_line(name: str) -> str:
    """A dataset's name, which may be that of any folder, as it can stand in a line of Markdown."""
    return " ".join(name.split()).replace("<", "&lt;")


def _render(template: str, head: Mapping[str, Any], **values: Any) -> str:
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader("pairstill.sets.cards")
    markdown = Environment(loader=loader, autoescape=False, trim_blocks=True, keep_trailing_newline=True)
    top = yaml.safe_dump(dict(head), sort_keys=False, allow_unicode=True)
    return markdown.get_template(template).render(head=top, **values)
