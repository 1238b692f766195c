"""What an import reads: which files, their bytes and formats, and what each record becomes."""
