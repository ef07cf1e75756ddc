"""Generators: policies that can be sampled (`generate`) and probed (`choice_probs`)."""
