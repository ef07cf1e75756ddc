"""Measuring a policy: suites of questions, intervals, and how it uses its tools."""
