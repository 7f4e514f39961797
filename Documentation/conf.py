# SPDX-License-Identifier: MIT
"""Sphinx's configuration: `make docs`. Needs LINUX, the source of the kernel."""

import os
import sys

# The directive of the kernel's own documentation, and its parser.
linux = os.environ["LINUX"]
os.environ["srctree"] = linux
sys.path.insert(0, os.path.join(linux, "Documentation/sphinx"))
extensions = ["kerneldoc"]
kerneldoc_srctree = os.path.abspath("..")
kerneldoc_bin = ""

project = "Skua"
copyright = "The Skua developers"
exclude_patterns = ["gpu/skua/golden"]
highlight_language = "none"

html_theme = "alabaster"
html_theme_options = {"page_width": "70em", "sidebar_width": "14em", "fixed_sidebar": True}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html", "relations.html"]}
html_show_sourcelink = False
html_copy_source = False
