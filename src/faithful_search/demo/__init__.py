"""A page to try the package in a browser: ask a search agent, audit trajectories, change evidence
and watch.
"""
