"""The mkdocs hook: adds pages that are not files in docs/, and adapts Markdown to the site.

Generated pages (reference, rules of vet) are made from the code at each build. README and the other
pages in the repository's root become pages of the site, with their links rewritten.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts import reference

ROOT = Path(__file__).parent.parent
ROOT_PAGES = {  # file in the repository's root: page of the site
    "README.md": "index.md",
    "ARCHITECTURE.md": "concepts/architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
_SOURCES = {page: source for source, page in ROOT_PAGES.items()}
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)((?:#[^)]*)?)\)")
_DATABASES = {
    "mariadb": "MariaDB",
    "mysql": "MySQL",
    "mysql-binary": "MySQL",
    "postgres": "PostgreSQL",
    "sqlite": "SQLite",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and those of the repository's root."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page's Markdown as the site needs it; `docs/` itself reads well without it."""
    del config, files
    path = page.file.src_uri
    return _details(_code_titles(_site_links(markdown, path)))


def generated_pages() -> dict[str, str]:
    """Return the text of every page of the site that is not a file in docs/, by its path there."""
    roots = {
        page: (ROOT / source).read_text(encoding="utf-8") for source, page in ROOT_PAGES.items()
    }
    return {**reference.pages(), **roots}


def _site_links(markdown: str, path: str) -> str:
    """Point links to where their target is on the site."""
    source = _SOURCES.get(path, f"docs/{path}")

    def replaced(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        on_site = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        return f"]({posixpath.relpath(on_site, posixpath.dirname(path) or '.')}{match[2]})"

    return _LINK.sub(replaced, markdown)


def _code_titles(markdown: str) -> str:
    """Turn the words after a code block's language into its title: ```sql postgres sqlite."""

    def titled(match: re.Match[str]) -> str:
        names = dict.fromkeys(_DATABASES[word] for word in match[2].split())
        return f'{match[1]} title="{", ".join(names)}"'

    return re.sub(r"^(```sql) +([a-z][a-z -]*)$", titled, markdown, flags=re.MULTILINE)


def _details(markdown: str) -> str:
    """Have the Markdown inside of <details> rendered."""
    return markdown.replace("<details><summary>", "<details markdown><summary>")
