"""Reinforcement learning with evidence rewards on TRL's trainer."""
