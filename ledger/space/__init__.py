"""What can be forgotten: retention, collection, and space given back."""
