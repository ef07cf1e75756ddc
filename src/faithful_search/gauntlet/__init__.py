"""The gauntlet: what a reward pays scripted cheats, beside an honest reader. `published` has the
rewards of the literature as mixes.
"""
