"""The benchmark that `make bench` runs (docs/benchmarks.md).

Vocabulary: a *case* is one server with one kind of body; a *load* is one run of the generator
against it (light, half, saturated); a *figure* is a number in a table; a *target* is a figure with
a bound. The product does not import this package.
"""
