"""Training: expert episodes and supervised start, then reinforcement learning with evidence rewards."""
