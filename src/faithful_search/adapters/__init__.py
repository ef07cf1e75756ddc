"""Doors into other people's trainers, one file each."""
