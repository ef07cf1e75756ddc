"""Facts: where they are kept, how entities are found in a query, how facts become sentences."""
