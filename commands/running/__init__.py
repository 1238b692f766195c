"""Commands that run, watch and configure a daemon, or measure without one."""
