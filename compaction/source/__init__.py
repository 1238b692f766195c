"""The Spark source ``format("headgate")``: topics read in batches and as streams."""
