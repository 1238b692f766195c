"""Object stores: ``base`` is the interface, ``open`` makes one of a URL.

``file`` keeps objects as frames in segment files of a directory, ``s3`` in a bucket.
"""

from uploader.stores.open import StoreUrlError, open_store

__all__ = ["StoreUrlError", "open_store"]
