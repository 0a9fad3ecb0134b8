"""What is shown to people: pictures now; tables and a page to come."""
