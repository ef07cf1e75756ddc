"""Model cards that say how something was made and measured, and the way to the Hub."""
