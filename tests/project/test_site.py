"""The reference on the documentation's site names what is there, and every public name.

That links lead somewhere, `mkdocs build --strict` checks in `.ci/run`.
"""

import re
from collections import Counter

import griffe
import pytest
from paths import ROOT

import faithful_search as fs

REFERENCE = ROOT / "docs" / "reference"
NAMES = [
    name
    for page in sorted(REFERENCE.glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.fixture(scope="module")
def package():
    return griffe.load("faithful_search", search_paths=[ROOT / "src"])


@pytest.mark.parametrize("name", NAMES)
def test_a_documented_name_has_a_docstring(name, package):
    assert package[name.removeprefix("faithful_search.")].docstring


def test_no_name_is_documented_twice():
    assert [name for name, times in Counter(NAMES).items() if times > 1] == []


def test_every_public_name_is_in_the_overview():
    overview = (REFERENCE / "index.md").read_text(encoding="utf-8")
    missing = [name for name in fs.__all__ if f"`fs.{name}`" not in overview]
    assert missing == ["__version__"], "give these a place in docs/reference/index.md"


def test_every_public_name_has_a_section():
    listed_with_their_kind = {
        "Mix",
        "FaithfulSearchError",
        "dialects",
        "judges",
        "rewards",
        "tools",
    }
    sections = {name.removeprefix("faithful_search.") for name in NAMES}
    missing = set(fs.__all__) - sections - listed_with_their_kind
    assert missing == {"__version__"}, "give these a line `:::` in docs/reference/"
