"""``headgate top``: the status of a daemon, again and again, on one screen."""
