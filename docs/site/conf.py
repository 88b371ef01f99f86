"""Sphinx's configuration; build.py says how it is run."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "nsbox"
author = "nsbox authors"
copyright = "nsbox authors, MIT licence"
release = version = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
templates_path = ["templates"]
nitpicky = False  # types of the standard library have no page here; links of pages are checked all the same
toc_object_entries_show_parents = "hide"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
modindex_common_prefix = ["nsbox."]

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
myst_linkify_fuzzy_links = False
myst_highlight_code_blocks = True

html_theme = "pydata_sphinx_theme"
html_title = "nsbox"
html_static_path = ["static"]
html_css_files = ["nsbox.css"]
html_js_files = ["nsbox.js"]
html_favicon = "static/favicon.svg"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_permalinks_icon = "#"
html_sidebars = {"index": [], "search": [], "genindex": []}
html_context = {"default_mode": "auto"}
html_theme_options: dict[str, Any] = {
    "logo": {"image_light": "_static/logo.svg", "image_dark": "_static/logo.svg", "text": "nsbox", "alt_text": ""},
    "navbar_align": "left",
    "navbar_start": ["navbar-logo"],
    "navbar_center": ["navbar-nav"],
    "navbar_end": ["versions", "theme-switcher"],
    "navbar_persistent": ["search-button-field"],
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "navigation_depth": 3,
    "secondary_sidebar_items": ["page-toc", "as-markdown"],
    "footer_start": ["copyright"],
    "footer_center": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "show_prev_next": True,
    "search_bar_text": "Search the documentation",
}


class Links(SphinxPostTransform):
    """Turns names of nsbox that stand as code, such as `Sandbox.run()`, into links, once in each section."""

    default_priority = 5

    def run(self, **options: object) -> None:
        """Look at each piece of code that is in no heading, link or signature."""
        if self.env.docname == "index" or self.env.docname.startswith("files/"):
            return
        objects = self.env.get_domain("py").objects  # type: ignore[attr-defined]
        seen: set[tuple[int, str]] = set()
        for literal in [*self.document.findall(nodes.literal)]:
            name = _name(literal.astext(), objects)
            if name is None or _is_in(
                literal, nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc_signature
            ):
                continue
            entry, place = objects[name], (id(_section(literal)), name)
            if place in seen or entry.docname == self.env.docname:
                continue
            seen.add(place)
            uri = self.app.builder.get_relative_uri(self.env.docname, entry.docname)
            link = nodes.reference("", "", internal=True, refuri=f"{uri}#{entry.node_id}", classes=["api"])
            literal.replace_self(link)
            link += literal


def _name(text: str, objects: dict[str, Any]) -> str | None:
    match = re.fullmatch(r"(nsbox\.)?([A-Za-z_][\w.]*)(\(.*\))?", text)
    if match is None or not (match[1] or match[3] or "." in match[2] or re.match(r"[A-Z]\w*[a-z]", match[2])):
        return None
    name = f"nsbox.{match[2]}"
    return name if name in objects and objects[name].objtype != "module" else None


def _is_in(node: nodes.Node, *kinds: type[nodes.Node]) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def _section(node: nodes.Node) -> nodes.Node:
    while node.parent is not None and not isinstance(node, (nodes.section, nodes.row)):
        node = node.parent
    return node


def _page(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    context["markdown"] = os.path.basename(pagename) + ".md" if doctree is not None else None
    context["versions"] = os.environ.get("NSBOX_SITE_VERSIONS")


def setup(app: Sphinx) -> dict[str, Any]:
    """Add what is our own."""
    app.add_post_transform(Links)
    app.connect("html-page-context", _page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
