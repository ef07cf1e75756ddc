"""The package as a whole: its public names, what importing it costs, which part may import which, the README's code."""

import ast
import doctest
import gzip
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

import faithful_search as fs

PACKAGE = Path(fs.__file__).parent
LAYERS = (
    {"errors"},
    {"flags"},
    {"registry", "text", "trajectory", "tasks", "bundled", "world", "wire"},
    {"counterfactual"},
    {"formats"},
    {"dialects"},
    {"tools", "inference"},
    {"judges"},
    {"rewards"},
    {"rollout"},
    {"training", "measure", "coldstart", "distil"},
    {"analysis", "hub", "serving", "demo"},
    {"cli"},
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
TORCH = {"torch", "transformers", "trl", "accelerate", "peft"}
TORCH_ROOMS = ("inference.", "training.", "coldstart.", "distil.", "judges.nli")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_block(holds: str) -> tuple[str, str]:
    """The README's block of Python that holds these words, and the output that it promises below."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"```python\n([^`]*{holds}[^`]*)```(?:\n\n```text\n([^`]*)```)?", text)
    return found


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Dotted names inside the package, with their syntax trees."""
    paths = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    return [
        (name, ast.parse(path.read_text(encoding="utf-8"))) for name, path in sorted(paths.items())
    ]


def inner_imports(name: str, tree: ast.Module) -> Iterator[str]:
    """The modules of this package that `name` imports, dotted, at any level of nesting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = [
                *name.split(".")[: -node.level],
                *(node.module.split(".") if node.module else []),
            ]
            named = [
                ".".join([*module, alias.name])
                for alias in node.names
                if alias.name != "__version__"
            ]
            yield from [".".join(module)] if module else named


def outer_imports(tree: ast.Module) -> Iterator[str]:
    """The top-level packages that are imported absolutely, at any level of nesting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").split(".")[0]


def room(name: str) -> str:
    return name.split(".")[0]


@cache
def inner_edges() -> set[tuple[str, str]]:
    return {
        (room(name), room(target))
        for name, tree in modules()
        if name != "__init__"
        for target in inner_imports(name, tree)
        if room(name) != room(target)
    }


def test_every_public_name_can_be_imported_and_is_what_type_checkers_see():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert len(set(fs.__all__)) == len(fs.__all__) and {*seen, "__version__"} == set(
        fs.__all__
    ) <= set(dir(fs))
    for name, module in seen.items():
        found = getattr(fs, name)
        assert not module or found is getattr(
            importlib.import_module(f"faithful_search.{module}"), name
        )
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fs.no_such_name


def test_importing_and_scoring_pasted_text_bring_no_heavy_package():
    loaded = "import sys\nprint(sorted({'torch', 'transformers', 'numpy', 'datasets', 'msgspec'} & set(sys.modules)))"
    assert run_python(f"import faithful_search\n{loaded}") == "[]\n"
    code, promised = readme_block(r"rewards\.load")
    output = run_python(f"{code}\nimport sys\nprint({TORCH!r} & set(sys.modules))")
    assert (
        output == f"{promised}set()\n" and len([line for line in code.splitlines() if line]) <= 12
    )


def test_the_readmes_own_agent_trains_on_a_cpu(tmp_path, monkeypatch, capsys):
    """As it stands, in a folder where its names are there: the model is the bundled one, the corpus the world's."""
    from faithful_search.bundled import tiny_policy, world_file

    code, _ = readme_block("SearchGRPOTrainer")
    (tmp_path / "your").mkdir()
    (tmp_path / "your" / "model").symlink_to(tiny_policy("pou"))
    (tmp_path / "corpus.jsonl.gz").symlink_to(world_file("passages.jsonl.gz"))
    with gzip.open(tmp_path / "questions.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(
            json.dumps({"question": "What is the capital of Peru?", "answers": ["Lima"]}) + "\n"
        )
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    assert "'train_loss'" in capsys.readouterr().out


@pytest.mark.parametrize("in_a_chat", [False, True])
def test_the_readmes_reward_function_scores_what_a_trainer_gives_it(in_a_chat):
    """A cited answer, the same with a citation of what is not there, a wrong answer, and neither call nor answer."""
    code, _ = readme_block("def proof_of_use")
    names: dict[str, Any] = {}
    exec(code, names)
    call, found = (
        '{"name": "local_search", "arguments": {"query": "Peru"}}',
        "Peru [E1]: The capital of Peru is Lima.",
    )
    lasts = [
        f"<think><helpful>yes</helpful><ref>{ref}</ref>So it is.</think><answer>{answer}</answer>"
        for ref, answer in (("E1", "Lima"), ("E2", "Lima"), ("E1", "Quito"))
    ]
    completions: list[Any]
    if in_a_chat:
        calls = [{"type": "function", "function": json.loads(call)}]
        asked = {"role": "assistant", "content": "<think>Peru?</think>", "tool_calls": calls}
        result = {"role": "tool", "name": "local_search", "content": found}
        completions = [[asked, result, {"role": "assistant", "content": last}] for last in lasts]
        completions.append([{"role": "assistant", "content": "Hm."}])
    else:
        head = f"<think>Peru?</think><tool_call>{call}</tool_call>\n<tool_response>\n{found}\n</tool_response>\n"
        completions = [*(head + last for last in lasts), "Hm."]
    prompts, answers = ["What is the capital of Peru?"] * 4, [["Lima"]] * 4
    assert names["proof_of_use"](prompts=prompts, completions=completions, answers=answers) == [
        1.0,
        -0.25,
        0.0,
        -1.0,
    ]


def test_the_recipes_page_names_every_recipe_and_configuration():
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^\| `((?:pou|hack|veritas|ppo|self_eval|pokee|rm|sft|eval)_[^`, ]+)` \|",
        text,
        re.MULTILINE,
    )
    there = sorted(path.stem for path in (ROOT / "recipes" / "configs").glob("*.yaml"))
    assert sorted(set(listed)) == there
    assert [
        path.name for path in (ROOT / "recipes").glob("*.py") if f"## `{path.name}`" not in text
    ] == []


def test_imports_are_relative_inside_and_point_one_way_and_only_some_rooms_import_torch():
    rooms = {room(name) for name, _ in modules()} - {"__init__"}
    assert rooms <= set(RANK), (
        f"give these a place in LAYERS and in docs/architecture.md: {rooms - set(RANK)}"
    )
    assert [
        (source, target) for source, target in sorted(inner_edges()) if RANK[target] > RANK[source]
    ] == []
    graph: dict[str, set[str]] = {}
    for source, target in inner_edges():
        graph.setdefault(source, set()).add(target)
    assert list(TopologicalSorter(graph).static_order()), "no two rooms import each other"
    outer = {name: set(outer_imports(tree)) for name, tree in modules()}
    assert [name for name, used in outer.items() if "faithful_search" in used] == []
    users = [name for name, used in outer.items() if TORCH & used]
    assert [name for name in users if not f"{name}.".startswith(TORCH_ROOMS)] == [] and len(
        users
    ) > 10


def test_the_examples_in_docstrings_give_what_they_say(monkeypatch):
    monkeypatch.setattr(
        "linecache.checkcache", lambda filename=None: None
    )  # else of every file, for each docstring
    names = [f"faithful_search.{name}".removesuffix(".__init__") for name, _ in modules()]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 100


EXTRAS = ("train", "parquet", "evaluate", "widget", "web", "dense", "qdrant", "serve", "mcp", "dev")


def test_every_import_is_declared_and_what_the_readmes_commands_install_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def packages(*lists: list[str]) -> set[str]:
        return {re.split(r"[\[<>=]", item)[0] for items in lists for item in items}

    declared = {
        name.replace("-", "_").lower()
        for name in packages(project["dependencies"], *extras.values())
    }
    used = {name for _, tree in modules() for name in outer_imports(tree)} - set(
        sys.stdlib_module_names
    )
    called = {"yaml": "pyyaml", "faiss": "faiss_cpu"}
    assert {called.get(name, name) for name in used} - declared == set()
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    installed = packages(project["dependencies"], *(extras[name] for name in EXTRAS)) - {
        "faithful-search"
    }
    assert installed - set(pins) == set()
    assert [
        version for version in pins.values() if not re.fullmatch(r"[\d.]+(post\d+)?", version)
    ] == []


POLICIES = [
    PACKAGE / "data" / f"tiny_{name}"
    for name in ("policy", "search_r1", "self_eval", "pokee", "memory")
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_the_bundled_policies_are_small_and_know_every_name_whole(policy):
    from transformers import AutoTokenizer

    assert sum(path.stat().st_size for path in policy.iterdir()) <= 8 * 2**20
    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert (tokenizer.chat_template is None) == (policy.name == "tiny_search_r1")
    names = json.loads((PACKAGE / "data" / "world" / "names.json").read_text(encoding="utf-8"))
    ids = tokenizer(list(names), add_special_tokens=False)["input_ids"]
    assert [name for name, own in zip(names, ids, strict=True) if len(own) != 1] == [] and len(
        names
    ) > 500


def test_the_wheel_and_the_sources_hold_what_they_must():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]["targets"]
    assert build["wheel"]["packages"] == ["src/faithful_search"]  # all of it, data included
    assert set(build["wheel"]["force-include"]) == {"evaluate_metrics", "recipes/configs", "spaces"}
    folders = {
        "src",
        "evaluate_metrics",
        "tests",
        "recipes",
        "benchmarks",
        "scripts",
        "docs",
        "spaces",
    }
    assert {f"/{name}" for name in folders} <= set(build["sdist"]["include"])
    assert [name for name in folders if not (ROOT / name).is_dir()] == []


def test_the_security_page_names_what_attacks_each_promise():
    """Each row of its tables names tests that are there."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    promises = text.partition("## What is not")[0].splitlines()
    rows = [line for line in promises if line.startswith("| ") and "| promise |" not in line]
    named = [re.findall(r"`(tests/\S+?\.py)`", row.rpartition(" | ")[2]) for row in rows]
    assert (
        len(rows) > 12
        and [name for names in named for name in names if not (ROOT / name).exists()] == []
    )
    assert [
        row for row, names in zip(rows, named, strict=True) if not (names or "the same" in row)
    ] == []


def test_the_architecture_pages_tree_is_the_house():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = re.search(r"```text\n(src/faithful_search/\n.*?)```", text, re.DOTALL).group(1)
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    ours = {
        path.name
        for path in PACKAGE.iterdir()
        if not path.name.startswith("_") and path.suffix in ("", ".py")
    }
    assert ours - listed == set()
    assert {"recipes", "scripts", "benchmarks", "tests", "docs"} <= listed
    assert [
        name for path in (ROOT / "recipes").glob("*.py") if (name := path.name) not in tree
    ] == []
