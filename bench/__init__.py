"""What `make bench` measures, and with what; read docs/benchmarks.md first.

Vocabulary: a *case* is one server under one body; a *load* is one run of the generator against it
(light, half, saturated); a *figure* is a number of the table; a *target* is a figure with a bound.
Only `python -m bench` imports this package.
"""
