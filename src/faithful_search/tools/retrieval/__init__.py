"""Corpora, and what can be searched in them: by words, by vectors, by both, here or in an engine elsewhere."""
