"""A pool of workers: shares the records of a topic, each key in order, different keys in parallel.

    pip install dist/headgate_client-*.whl
    python worker_pool.py TOPIC SUBSCRIPTION [FILTER...]

Start it as often as you like, on any machine: each is one more consumer, and the keys are shared
out anew when one comes or goes. With filters it takes only keys that match one of them, such as
'payment', 'ship*' or 'eu-west-?'. SIGTERM lets the workers finish what they have.
"""

import os
import signal
import socket
import sys

from headgate import Client, Message

THREADS = 8
URL = os.environ.get("HEADGATE_URL", "http://127.0.0.1:7440")


def work(message: Message) -> None:
    """Returns: the message is finished. Raises: it is sent again, and its key waits until then."""
    print(f"{message.key} {message.seq} {message.data}\n", end="", flush=True)


def main(topic: str, subscription: str, *filters: str) -> None:
    """Works until SIGTERM or Ctrl-C."""
    name = f"{socket.gethostname()}-{os.getpid()}"
    settings = {"mode": "key_shared", "redeliveries_max": 3, "poison": "block"}
    with (
        Client(URL) as headgate,
        headgate.consume(topic, subscription, name=name, filters=filters, create=settings) as pool,
    ):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: pool.stop())
        pool.handle(work, threads=THREADS)


if __name__ == "__main__":
    main(*sys.argv[1:])
