"""Formulas of the site as MathML, which browsers show by themselves: no script from elsewhere."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Replace each formula of a page."""
    return FORMULA.sub(lambda found: convert(html.unescape(found[3]), display=KINDS[found[2]]), text)


KINDS = {"(": "inline", "[": "block"}
