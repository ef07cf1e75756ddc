"""The way to the web: a guarded client, search services, readers of pages."""
