"""A rollout's search step as Search-R1 trains with it, against `faithful-search serve`.

Its trainer collects the queries of all live rollouts, sends them as one request, and puts each
rollout's passages into its context, the first line of `contents` as the title. This is that step
and nothing of ours: any code that speaks this format can use the server unchanged. It needs
`requests` only.

    faithful-search serve world &
    python examples/search_r1_client.py http://127.0.0.1:8000/retrieve
"""

import argparse

import requests


def search_step(search_url: str, queries: list[str], topk: int = 3) -> list[str]:
    """One text for each query, for the `<information>` block of its rollout."""
    asked = {"queries": queries, "topk": topk, "return_scores": True}
    found = requests.post(search_url, json=asked, timeout=60).json()["result"]
    return [information(passages) for passages in found]


def information(passages: list[dict]) -> str:
    """The passages of one query, numbered."""
    lines = []
    for number, passage in enumerate(passages, 1):
        title, _, text = passage["document"]["contents"].partition("\n")
        lines.append(f"Doc {number}(Title: {title}) {text}\n")
    return "".join(lines)


def main() -> None:
    """Search for what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "search_url", nargs="?", default="http://127.0.0.1:8000/retrieve", help="with its path"
    )
    parser.add_argument("queries", nargs="*", default=["capital city", "river", ""])
    parser.add_argument("--topk", type=int, default=3)
    args = parser.parse_args()
    for query, text in zip(
        args.queries, search_step(args.search_url, args.queries, args.topk), strict=True
    ):
        print(f"<search> {query} </search>\n<information>{text}</information>\n")


if __name__ == "__main__":
    main()
