"""Everything that leaves the process: HTTP, models behind endpoints, retries, the cache, files."""
