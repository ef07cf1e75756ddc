"""Score trajectories with Ray Data: the scores of `faithful-search audit`, on as many machines as
Ray has.

    pip install "ray[data]"
    python examples/score_with_ray.py rollouts.jsonl scores/ --workers 2

Rows stream through, so that the file may be larger than memory.
"""

import argparse
import resource
import time
from collections.abc import Sequence

import ray

import faithful_search as fs

BATCH = 256


def main(argv: Sequence[str] | None = None) -> int:
    """Score the file, write Parquet, and say how fast it was; returns the number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="JSON lines, or a folder of such files")
    parser.add_argument("out", help="folder for Parquet files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--metrics", help="names, separated by commas; by default all")
    options = parser.parse_args(argv)
    metrics = tuple(options.metrics.split(",")) if options.metrics else None

    ray.init(num_cpus=options.workers, include_dashboard=False, ignore_reinit_error=True)
    start = time.monotonic()
    rows = ray.data.read_json(options.file)
    scored = rows.map_batches(fs.BatchScorer(metrics), batch_size=BATCH, batch_format="pandas")
    scored.write_parquet(options.out)
    seconds, count = time.monotonic() - start, ray.data.read_parquet(options.out).count()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count:,} rows in {seconds:.0f} s: {count / seconds:,.0f} a second; this process took {most:,.0f} MB at most"
    )
    return count


if __name__ == "__main__":
    main()
