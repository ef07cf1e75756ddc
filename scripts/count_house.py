"""Count what the package is made of: lines, functions, private functions called once, comments, dependencies.

```
python scripts/count_house.py            # the package, by room, and the tests
```
"""

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "faithful_search"


@dataclass(frozen=True)
class Count:
    """What was counted in some files; `once` are the private functions that their file names a single time."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    private: int = 0
    once: int = 0
    comments: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(*(getattr(self, own.name) + getattr(other, own.name) for own in fields(self)))

    @property
    def row(self) -> str:
        per = 100 / max(1, self.lines)
        share = f"{self.once} of {self.private}"
        return f"{self.files:5} {self.lines:7,} {self.functions * per:10.1f} {share:>13} {self.comments * per:9.1f}"


def counted(paths: Iterable[Path]) -> Count:
    return sum((_file(path.read_text(encoding="utf-8")) for path in paths), Count())


def _file(text: str) -> Count:
    nodes = list(ast.walk(ast.parse(text)))
    names = [
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    private = [name for name in names if re.fullmatch(r"_[^_].*", name)]
    named = Counter(node.id for node in nodes if isinstance(node, ast.Name))
    named += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
    comments = sum(
        token.type == tokenize.COMMENT
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    once = sum(named[name] == 1 for name in private)
    return Count(1, len(text.splitlines()), len(names), len(private), once, comments)


def main() -> None:
    rooms = {
        folder.name + "/": folder.rglob("*.py")
        for folder in sorted(PACKAGE.iterdir())
        if folder.is_dir()
    }
    rows = {name: found for name, paths in rooms.items() if (found := counted(paths)).lines}
    rows = {"(top)": counted(PACKAGE.glob("*.py")), **rows}
    rows |= {
        "package": sum(rows.values(), Count()),
        "tests": counted((ROOT / "tests").rglob("*.py")),
    }
    print(f"{'':12} files   lines  functions/100  private: once  comments/100")
    for name, row in rows.items():
        print(f"{name:12} {row.row}")
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    print(
        f"core install: {len(core)} packages: {', '.join(re.split('[>=<]', one)[0] for one in core)}"
    )


if __name__ == "__main__":
    main()
