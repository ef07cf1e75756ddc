"""The supervised start: episodes to imitate, played by experts or written by a model, and training
on them.
"""
