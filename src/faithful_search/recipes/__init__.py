"""The recipes, each as a module with a `main`: what `faithful-search train` and `eval` run, and the
scripts in `recipes/` that `accelerate launch` starts.
"""
