"""Which consumer gets which message, when, and when again. Pure: events and ``now`` in.

look_ahead, finished_ahead    the offsets of a partition that are known and not finished
messages       what waits for a member, and what is with it
members        who there is, and which key belongs to whom
failures       what is blocked, and what the policy says of it
resent         what is delivered once more
deliveries     the machine over these: take, sent, acknowledged or failed, again
key_shared, unkeyed, unreliable    what each mode adds to it
windows        which of them a subscription has
"""
