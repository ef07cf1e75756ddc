"""Where the tests find what lies outside them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
RECIPES = ROOT / "recipes"
EXAMPLES = ROOT / "examples"
SHARED = ROOT.parent / "shared"
"""Data too large for the repository, beside it; tests that need it are skipped where it is
missing.
"""
