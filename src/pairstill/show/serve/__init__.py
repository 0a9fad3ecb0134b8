"""A local web page over a folder of runs: what is going on, what came out, and search with the students."""
