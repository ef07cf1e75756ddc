"""The client's side: what an action and an observation are."""

from faithful_search.adapters.openenv import SearchAction, SearchObservation

__all__ = ["SearchAction", "SearchObservation"]
