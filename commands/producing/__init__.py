"""Sending the records of a file or a pipe, several requests at a time."""
