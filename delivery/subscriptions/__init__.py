"""Subscriptions at their owner. To read them in the order in which a message meets them:

runtime      all that a shard owns: loads them, serves them in turns, answers requests
admission    which records become messages, and when  (records: reading/blocks.py)
window/      which consumer gets which message: ``deliveries.py`` first
running      one subscription: takes batches from its window, has them written, hears outcomes
consumers    who is there, and what is written to them; ``handing.py`` has the forms
journaled    what is finished: into the journal, then into the ledger
dead_letters, repairs    what becomes of messages that failed
shown/       what operators see

owners       how another shard asks, by ``requests.py``; the answers are in ``schemas.py``
budget, pinned    what all of them may take together: memory, partitions that are followed
"""
