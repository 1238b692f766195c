"""The configuration of the daemon: its keys, their values, and where these come from."""

from daemon.config.fields import (
    ENVIRONMENT_PREFIX,
    FIELDS,
    KEYS,
    Config,
    ConfigError,
    Derived,
    Field,
    Override,
)
from daemon.config.loading import Reload, load, load_again, reload

__all__ = [
    "ENVIRONMENT_PREFIX", "FIELDS", "KEYS", "Config", "ConfigError", "Derived", "Field",
    "Override", "Reload", "load", "load_again", "reload",
]  # fmt: skip
