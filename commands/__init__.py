"""One file per command of the same name: options, help, JSON shape and text. cli.py lists them."""
