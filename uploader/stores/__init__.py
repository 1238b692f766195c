"""Object stores: ``base`` is the interface, ``open`` makes a store from a URL.

``file`` keeps objects as frames in the segment files of a directory, ``s3`` keeps them in a bucket.
"""

from uploader.stores.open import StoreUrlError, open_store

__all__ = ["StoreUrlError", "open_store"]
