"""Real pairs are chosen; nothing is optimised."""
