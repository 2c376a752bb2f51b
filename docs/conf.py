"""How Sphinx builds the site: MyST pages, the API from docstrings, the commands from click."""

import autopipe

project = "autopipe"
author = copyright = "the autopipe developers"
release = autopipe.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = False
# `nn.Module` and the like are torch's, whose inventory is not at hand where the site is built without a network.
nitpicky = False

html_theme = "furo"
html_title = "autopipe"
