"""The package as a whole: its public names, what importing it costs, which part may import which,
the README's code.
"""

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
    {"errors", "docstrings"},
    {"flags"},
    {
        "registry",
        "answer_forms",
        "answer_tokens",
        "abstention",
        "columns",
        "json_lines",
        "text",
        "escape",
        "loose_json",
        "yaml_files",
        "yaml_loaders",
        "yaml_kinds",
        "trajectory",
        "tasks",
        "suites",
        "bundled",
        "wire",
    },
    {"citations", "evidence"},
    {"formats"},
    {"dialects"},
    {"reading"},
    {"tools", "inference"},
    {"judges"},
    {"world"},
    {"counterfactual", "rewards"},
    {"rollout", "scoring"},
    {"adapters", "agents"},
    {"training", "measure", "coldstart", "distil"},
    {"gauntlet"},
    {"analysis", "hub", "serving", "demo"},
    {"recipes"},
    {"cli"},
    {"__main__"},
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
HOSTS = {"inspect_ai", "openenv", "skyrl_gym", "verifiers", "verl"}
NOT_OF_THE_WORLD = ("trajectory", "judges", "rewards.base", "rollout", "training")
TORCH = {"torch", "transformers", "trl", "accelerate", "peft"}
TORCH_ROOMS = ("inference.", "training.", "coldstart.", "distil.", "recipes.")
TORCH_ROOMS += ("judges.windowed.", "judges.nli.", "judges.hhem.", "judges.lettuce.")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_block(holds: str) -> tuple[str, str]:
    """The README's block of Python that holds these words, and the output that it promises
    below.
    """
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


def typed_names() -> dict[str, str | None]:
    """The public names that type checkers see, with the modules that they are from."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_type_checkers_see_every_public_name():
    assert sorted([*typed_names(), "__version__"]) == sorted(fs.__all__)
    assert set(fs.__all__) <= set(dir(fs))


@pytest.mark.parametrize(("name", "module"), typed_names().items())
def test_a_public_name_is_what_its_module_has(name, module):
    value = getattr(fs, name)
    if module is not None:
        assert value is getattr(importlib.import_module(f"faithful_search.{module}"), name)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = fs.no_such_name


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"torch", "transformers", "numpy", "datasets", "msgspec"}
    code = f"import faithful_search\nimport sys\nprint({heavy} & set(sys.modules))"
    assert run_python(code) == "set()\n"


def test_the_readmes_first_reward_prints_what_it_shows_without_torch():
    code, promised = readme_block(r"rewards\.load")
    output = run_python(f"{code}\nimport sys\nprint({TORCH!r} & set(sys.modules))")
    assert output == f"{promised}set()\n"


def test_the_readmes_first_reward_is_short():
    code, _ = readme_block(r"rewards\.load")
    assert len([line for line in code.splitlines() if line]) <= 12


def test_the_readmes_own_agent_trains_on_a_cpu(tmp_path, monkeypatch, capsys):
    """As it stands, in a folder where its names are there: the model is the bundled one, the corpus
    the world's.
    """
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


@pytest.mark.filterwarnings("ignore")
def test_the_readmes_way_in_trls_trainer_runs(tmp_path, monkeypatch, caplog):
    """One step with an untrained model, whose first batch has no valid format: the hint says so."""
    import lab
    import trl
    from trl.chat_template_utils import qwen3_chat_template

    from faithful_search.bundled import world_file

    model = lab.small("qwen2", num_attention_heads=2, num_key_value_heads=2, intermediate_size=32)
    tokenizer = lab.byte_tokenizer(
        ("<|im_start|>", "<|im_end|>", "<|pad|>"),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        chat_template=qwen3_chat_template,
    )
    model.save_pretrained(tmp_path / "your" / "model")
    tokenizer.save_pretrained(tmp_path / "your" / "model")
    (tmp_path / "corpus.jsonl.gz").symlink_to(world_file("passages.jsonl.gz"))
    (tmp_path / "questions.jsonl.gz").symlink_to(world_file("train.jsonl.gz"))
    monkeypatch.setenv("FAITHFUL_SEARCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    small = {"max_steps": 1, "per_device_train_batch_size": 2, "num_generations": 2}
    quiet = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no"}

    def config(folder, max_completion_length):
        return trl.GRPOConfig(folder, max_completion_length=32, **small, **quiet)

    code, _ = readme_block("trl_reward")
    names = {"__name__": "__main__"}
    exec(code.replace("GRPOConfig(", "config("), names | {"config": config})
    assert "all 2 rewards of the first batch are -1" in caplog.text


@pytest.mark.parametrize(
    ("page", "folder"),
    [
        ("recipes/README.md", "recipes/configs"),
        ("scripts/studies/README.md", "scripts/studies"),
        ("scripts/policies/README.md", "scripts/policies"),
    ],
)
def test_a_page_names_every_configuration_of_its_folder(page, folder):
    text = (ROOT / page).read_text(encoding="utf-8")
    listed = re.findall(
        r"^\| (`(?:pou|hack|veritas|ppo|self_eval|pokee|rm|sft|eval|rejection|search_r1|r1|real|"
        r"deep_researcher_plus)_[^|]+) \| (?!\d|EM)",
        text,
        re.MULTILINE,
    )
    listed = re.findall("`([^`]+)`", " ".join(listed))
    there = sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))
    assert sorted(set(listed)) == there


def test_the_recipes_page_has_a_section_for_each_recipe():
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert [
        path.name for path in (ROOT / "recipes").glob("*.py") if f"## `{path.name}`" not in text
    ] == []


def test_every_room_has_a_place():
    rooms = {room(name) for name, _ in modules()} - {"__init__"}
    homeless = rooms - set(RANK)
    assert homeless == set(), "give these a place in LAYERS and in docs/architecture.md"


def test_the_bundled_world_is_a_guest():
    """Whatever judges, rewards and trains any agent imports nothing of one world's facts."""
    importing = {
        name
        for name, tree in modules()
        if name.startswith(NOT_OF_THE_WORLD)
        for target in inner_imports(name, tree)
        if f"{target}.".startswith(("world.", "suites.world."))
    }
    assert importing == set()


def test_rooms_import_in_one_direction():
    edges = sorted(inner_edges())
    assert [(source, target) for source, target in edges if RANK[target] > RANK[source]] == []


def test_no_two_rooms_import_each_other():
    graph: dict[str, set[str]] = {}
    for source, target in inner_edges():
        graph.setdefault(source, set()).add(target)
    assert list(TopologicalSorter(graph).static_order())  # raises where there is a circle


def test_imports_inside_the_package_are_relative():
    outer = {name: set(outer_imports(tree)) for name, tree in modules()}
    assert [name for name, packages in outer.items() if "faithful_search" in packages] == []


def test_only_some_rooms_import_torch():
    users = [name for name, tree in modules() if TORCH & set(outer_imports(tree))]
    assert len(users) > 10
    assert [name for name in users if not f"{name}.".startswith(TORCH_ROOMS)] == []


def test_the_examples_in_docstrings_give_what_they_say(monkeypatch):
    monkeypatch.setattr(
        "linecache.checkcache", lambda filename=None: None
    )  # else of every file, for each docstring
    names = [f"faithful_search.{name}".removesuffix(".__init__") for name, _ in modules()]
    results = {}
    for name in names:
        try:
            results[name] = doctest.testmod(importlib.import_module(name))
        except ModuleNotFoundError as error:
            # An adapter is imported by its host's users alone
            assert name.startswith("faithful_search.adapters.")
            assert error.name in HOSTS
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) > 100


EXTRAS = (
    "train",
    "parquet",
    "evaluate",
    "widget",
    "web",
    "dense",
    "judge",
    "judge-export",
    "serve",
    "mcp",
    "docs",
    "dev",
)


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def packages(*requirements: list[str]) -> set[str]:
    """The names of the packages that these lists require."""
    return {re.split(r"[\[<>=]", line)[0] for lines in requirements for line in lines}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_import_is_declared():
    requirements = packages(project()["dependencies"], *project()["optional-dependencies"].values())
    declared = {name.replace("-", "_").lower() for name in requirements}
    imported = {name for _, tree in modules() for name in outer_imports(tree)}
    # httpx2 brings httpcore2, in its own version
    called = {"yaml": "pyyaml", "faiss": "faiss_cpu", "httpcore2": "httpx2"}
    needed = {called.get(name, name) for name in imported - set(sys.stdlib_module_names)}
    assert needed - declared == set()


def test_what_the_readmes_commands_install_is_pinned():
    extras = project()["optional-dependencies"]
    installed = packages(project()["dependencies"], *(extras[name] for name in EXTRAS))
    assert installed - {"faithful-search"} - set(pins()) == set()


def test_pins_are_plain_versions():
    strange = [pin for pin in pins().values() if not re.fullmatch(r"[\d.]+(post\d+)?", pin)]
    assert strange == []


POLICIES = [
    PACKAGE / "data" / f"tiny_{name}"
    for name in ("policy", "search_r1", "self_eval", "pokee", "memory")
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_a_bundled_policy_is_small(policy):
    assert sum(path.stat().st_size for path in policy.iterdir()) <= 8 * 2**20


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_a_bundled_policy_knows_every_name_whole(policy):
    from transformers import AutoTokenizer

    names = list(json.loads((PACKAGE / "data" / "world" / "names.json").read_text("utf-8")))
    ids = AutoTokenizer.from_pretrained(policy)(names, add_special_tokens=False)["input_ids"]
    assert len(names) > 500
    assert [name for name, tokens in zip(names, ids, strict=True) if len(tokens) != 1] == []


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.name)
def test_only_search_r1_has_no_chat_template(policy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert (tokenizer.chat_template is None) == (policy.name == "tiny_search_r1")


def build_targets() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]


def test_the_wheel_holds_the_package_with_its_data():
    wheel = build_targets()["wheel"]
    assert wheel["packages"] == ["src/faithful_search"]
    assert set(wheel["force-include"]) == {"evaluate_metrics", "recipes/configs", "spaces"}


@pytest.mark.parametrize(
    "folder",
    [
        "src",
        "benchmarks",
        "datasets",
        "docs",
        "evaluate_metrics",
        "examples",
        "recipes",
        "scripts",
        "spaces",
        "tests",
    ],
)
def test_the_sources_hold_the_folder(folder):
    assert (ROOT / folder).is_dir()
    assert f"/{folder}" in build_targets()["sdist"]["include"]


def test_the_security_page_names_what_attacks_each_promise():
    """Each row of its tables names tests that are there."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    promises = text.partition("## What is not")[0].splitlines()
    rows = [line for line in promises if line.startswith("| ") and "| promise |" not in line]
    named = [re.findall(r"`(tests/\S+?\.py)`", row.rpartition(" | ")[2]) for row in rows]
    assert len(rows) > 12
    assert [name for names in named for name in names if not (ROOT / name).exists()] == []
    without = [row for row, names in zip(rows, named, strict=True) if not names]
    assert [row for row in without if "the same" not in row] == []


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
