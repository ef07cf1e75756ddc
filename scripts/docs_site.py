"""What the documentation's site is made of: a hook of mkdocs and an extension of griffe, which reads
the docstrings. `mkdocs.yml` names both.

Pages keep the paths that they have in the repository, so that a link works there and on the site
alike. Those under `docs/` are published at the site's root, and README.md is its first page.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import click
from griffe import Class, Extension, Function, Object, Parameter, ParameterKind, Parameters
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE",
    "datasets/**/*.md",
    "docs/**/*.md",
    "docs/figures/*.png",
    "docs/stylesheets/*.css",
    "examples/*",
    "recipes/*.md",
    "scripts/**/*.md",
)
SUBCLASSES = re.compile(r"^<!-- each (\w+) of ([\w.]+) -->$", re.MULTILINE)
COMMANDS = re.compile(r"^<!-- each command -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the site's files from the whole repository, in the place of those in `docs/` alone."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    site = Files(of_theme)
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            site.append(site_file(path.relative_to(ROOT).as_posix(), config))
    return site


def site_file(path: str, config: MkDocsConfig) -> File:
    """The file at `path` in the repository, with its address on the site."""
    file = File(path, str(ROOT), config.site_dir, config.use_directory_urls)
    file.dest_uri = file.dest_uri.removeprefix("docs/")
    return file


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what a page of the reference lists: classes and commands, found where they are."""
    if page.parent is None:  # no neighbours to show beside it: its tables get their room
        page.meta["hide"] = ["navigation"]

    def class_lines(marker: re.Match[str]) -> str:
        base_name, package_name = marker.groups()
        return "\n".join(subclasses(base_name, package_name))

    markdown = SUBCLASSES.sub(class_lines, markdown)
    return COMMANDS.sub(lambda _: "\n".join(commands()), markdown)


def subclasses(base_name: str, package_name: str) -> Iterator[str]:
    """A line of mkdocstrings for each public concrete subclass in the package's own files."""
    package = importlib.import_module(package_name)
    base = getattr(package, base_name)
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package_name}.{info.name}")
        for name, value in inspect.getmembers(module, inspect.isclass):
            if name.startswith("_") or value.__module__ != module.__name__:
                continue
            if issubclass(value, base) and value is not base and not inspect.isabstract(value):
                yield f"::: {module.__name__}.{name}"


def commands() -> Iterator[str]:
    """A section for each command of `faithful-search`: its help, as `--help` prints it."""
    from faithful_search.cli import cli

    todo = [click.Context(cli, info_name="faithful-search", **cli.context_settings)]
    while todo:
        context = todo.pop(0)
        if isinstance(context.command, click.Group):
            inner = context.command.commands.items()
            todo = [click.Context(each, context, name) for name, each in inner] + todo
        elif not context.command.params:
            continue  # a recipe, which reads its own flags; its group says how to list them
        yield f"## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"


class Docstrings(Extension):
    """Lets griffe read what it does not know: sections `Example:`, and msgspec's Structs."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        """Call a section of examples as griffe does."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )

    def on_class(self, *, cls: Class, **kwargs: object) -> None:
        """Give a Struct the signature that msgspec gives it: its fields."""
        if "Struct" not in [str(base).rpartition(".")[2] for base in cls.bases]:
            return
        fields = [
            Parameter(
                name,
                annotation=attribute.annotation,
                kind=ParameterKind.positional_or_keyword,
                default=attribute.value,
            )
            for name, attribute in cls.attributes.items()
            if "ClassVar" not in str(attribute.annotation) and "property" not in attribute.labels
        ]
        this = Parameter("self", kind=ParameterKind.positional_or_keyword)
        cls.set_member("__init__", Function("__init__", parameters=Parameters(this, *fields)))
