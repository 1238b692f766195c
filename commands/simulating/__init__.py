"""What a simulation found, as JSON, tables and a chart."""
