"""What raises an alarm, what each one means, and what stands still."""
