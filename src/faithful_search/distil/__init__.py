"""Small judges distilled from labelled pairs (VERITAS, section 4)."""
