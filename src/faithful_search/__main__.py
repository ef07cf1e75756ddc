"""`python -m faithful_search` is the command `faithful-search`."""

from .cli import main

if __name__ == "__main__":
    main()
