"""Finds a Java for Spark. Being filled in; exits 0 when the machine has Java 17 or 21."""

import subprocess
import sys

if __name__ == "__main__":
    sys.exit(subprocess.run(["java", "-version"], capture_output=True, check=False).returncode)
