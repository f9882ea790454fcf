"""What the broker shows: views of its state, their history, and the publisher of both."""
