"""Reads committed records: from the rings, from objects and from the files of the lake."""
