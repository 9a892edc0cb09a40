"""What an operator does with a running stack: examine it, give up steps, repair."""
