"""Files that anybody wrote, row by row, as trajectories: `files` gives the JSON of each row, `rows`
the trajectory in it.
"""
