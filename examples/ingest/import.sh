#!/bin/sh
# Imports files, each record once: run it again, or kill it at any moment and run it again.
#
#     sh import.sh FOLDER
set -eu
folder=$1
headgate=${HEADGATE:-.venv/bin/headgate}

# All NDJSON files of a folder, compressed or not. The field "order" is the key, so that an order's
# records stay in their order. What is not a record goes to the topic imported-invalid.
$headgate import imported "$folder/*.ndjson*" --key order --invalid imported-invalid

# Only what was paid, into another topic. The place in each file is kept for each topic.
$headgate import imported-paid "$folder/*.ndjson*" --where status=paid --invalid drop
