"""What the headgate command prints and does, one module per subject; cli.py names the commands."""
