"""Serving: a corpus over HTTP in the formats that trainers of search agents speak, tools over
MCP.
"""
