#!/bin/sh
# Writes records with curl: JSON with keys, NDJSON, and bytes.
set -eu
url=${HEADGATE_URL:-http://127.0.0.1:7440}

# A JSON object: records with keys, and a name for the request. If the answer is lost, send the same
# request again: within two minutes the daemon stores it only once.
curl --fail --silent --show-error "$url/v0/topics/orders" \
    -H 'Content-Type: application/json' \
    -d '{"idempotency_key": "order-A-1-placed",
         "records": [{"key": "A-1", "data": {"order": "A-1", "status": "placed", "total": 12.5}}]}'
echo

# NDJSON: each line is a record. `?key=order` takes each record's key from its field "order".
curl --fail --silent --show-error "$url/v0/topics/orders?key=order" \
    -H 'Content-Type: application/x-ndjson' --data-binary @- <<'LINES'
{"order": "A-1", "status": "paid", "total": 12.5}
{"order": "A-2", "status": "placed", "total": 99.0}
LINES
echo

# Bytes: the body is one record.
printf '\211PNG' | curl --fail --silent --show-error "$url/v0/topics/pictures?key=42" \
    -H 'Content-Type: application/octet-stream' --data-binary @-
echo
