"""The code of the gauntlet's guide runs as it stands there."""

import json
import re

from paths import ROOT
from served import invoked

GUIDE = (ROOT / "docs" / "gauntlet.md").read_text("utf-8")


def test_the_guides_own_cheat_is_played(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n([^`]*class CiteLast[^`]*)```", GUIDE)
    (tmp_path / "cite_last.py").write_text(code)
    done = invoked("gauntlet", "--mix", "pou", "--cheat", "cite_last.py", "--questions", "2")
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "outputs/gauntlet/gauntlet.json").read_text())
    assert {finding["cheat"] for finding in results["findings"]} == {"cite_last"}
