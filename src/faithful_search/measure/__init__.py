"""Measuring agents: suites of questions, audits of files, the metrics by name, and whether judges
can be trusted.
"""
