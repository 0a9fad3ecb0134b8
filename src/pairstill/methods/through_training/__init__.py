"""Training through the student: the gradient of real retrieval goes back through a student's whole training."""
