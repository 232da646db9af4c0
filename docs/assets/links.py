"""A hook of mkdocs: links to files of the repository that are no pages lead to where it is published."""

import re


def on_page_markdown(markdown: str, page, config, files) -> str:
    depth = page.file.src_uri.count("/") + 1
    return re.sub(rf"\]\({'../' * depth}(?=[\w.])", f"]({config.extra['source']}/blob/main/", markdown)
