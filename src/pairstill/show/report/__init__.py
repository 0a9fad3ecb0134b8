"""What is shown to people: one HTML page, and a picture of pairs."""
