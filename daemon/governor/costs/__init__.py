"""What requests to the store cost, and the budget for PUTs."""
