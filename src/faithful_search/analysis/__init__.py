"""Figures of training runs and evaluations, and what a training run leaves."""
