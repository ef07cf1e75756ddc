"""`faithful-search answerable`: can these questions be answered from this corpus?"""

from pathlib import Path
from typing import Any

import click
from msgspec import structs

from ..errors import ConfigError
from .options import AT_LEAST_1, FOLDER, config, echo, exit_unfinished, say


@click.command()
@click.argument("questions")
@click.option(
    "--corpus",
    required=True,
    help="Passages to look in: 'world', a file, the folder of an index, a Hub dataset, or the URL "
    "of a retrieval server or a search engine.",
)
@click.option(
    "--triples",
    help="Facts of a knowledge graph beside the corpus, 'world' or a .jsonl file, to say which "
    "questions need it. By default 'world' with the corpus 'world', else none.",
)
@click.option("--split", default="test", help="Split of the questions to use.")
@click.option("--limit", type=AT_LEAST_1, help="Number of questions. By default all.")
@click.option(
    "--sample-seed",
    type=int,
    help="Random seed for drawing the questions. By default the first ones are taken.",
)
@click.option(
    "--search-top-k", type=AT_LEAST_1, default=3, help="Number of passages that a search returns."
)
@click.option(
    "--searches", type=AT_LEAST_1, default=4, help="Maximum number of searches in an episode."
)
@click.option(
    "--out",
    type=FOLDER,
    help="Folder to write the results to. By default NAME-answerable in the current folder.",
)
@click.option("--overwrite", is_flag=True, help="Delete earlier results in the folder.")
@config
def answerable(out: Path | None, overwrite: bool, **options: Any) -> None:
    """Look whether questions can be answered from a corpus.

    QUESTIONS are 'world', a file, or a dataset on the Hub. For each question it is looked whether
    its gold passages are in the corpus, and whether they and its answer are retrieved by the best
    of these queries: the question, the titles of its gold passages, and its annotated
    sub-questions. A fact that the corpus lacks may be in a knowledge graph, which is not searched:
    the result says so. The share that can be answered is an upper bound for agents that only copy
    what such searches find. To continue after an interruption, run the same command again; other
    values of --search-top-k up to 20 and of --searches search nothing anew.
    """
    from ..measure.answerable import RESULTS, ROWS, LookupLimits, run_lookup, searching
    from ..rollout.arguments import EnvironmentArguments
    from ..tasks import load_tasks
    from ..tools.graphs.facts import read_triples
    from ..tools.local_search import kind_of_corpus
    from ..wire.cache import key_of

    questions, corpus = options["questions"], options["corpus"]
    if corpus == "none":
        raise ConfigError("--corpus none has no passages: name a corpus")
    tasks = load_tasks(questions, options["split"], options["limit"], seed=options["sample_seed"])
    name = Path(questions.rstrip("/")).name.partition(".")[0] or "questions"
    folder = out or Path(f"{name}-answerable")
    environment = EnvironmentArguments(corpus=corpus)
    can_be_read = kind_of_corpus(corpus) in ("index", "corpus")
    triples = options["triples"] or ("world" if corpus == "world" else "none")
    graph = None
    if triples != "none":
        graph = frozenset(triple.id for triple in read_triples(triples))
    settings = {
        "corpus": corpus,
        "passages": environment.corpus_digest(),
        "triples": triples,
        "questions": key_of(tasks=[structs.astuple(task) for task in tasks])[:16],
    }
    result = run_lookup(
        tasks=tasks,
        search=searching(corpus),
        passages=environment.corpus_passages if can_be_read else None,
        folder=folder,
        settings=settings,
        limits=LookupLimits(options["search_top_k"], options["searches"]),
        anew=overwrite,
        graph=graph,
    )
    echo(f"{len(tasks)} questions of {questions} in {corpus}: {result}\n")
    if not can_be_read:
        say("The corpus can only be searched: what no query finds may be in it all the same.")
    say(f"{ROWS}, {RESULTS} in {folder}")
    if result.failed:
        why = next(iter(result.failed.values()))
        exit_unfinished(
            [
                f"{len(result.failed)} questions could not be looked up and count nowhere; the "
                f"same command tries again: {why}"
            ]
        )
