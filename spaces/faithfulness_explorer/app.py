"""The Space: the page of `faithful-search demo`."""

from faithful_search.demo.app import launch

if __name__ == "__main__":
    launch()
