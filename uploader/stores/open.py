"""Opens the store that a URL names. boto3, which takes 0.2 s to import, is loaded for S3 only."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from uploader.stores.base import Encryption, PartedStore

FORMS = "file:///absolute/directory, s3://bucket or s3://bucket/prefix"


class StoreUrlError(ValueError):
    """A URL that does not name a store."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the store URL {url!r} {why}; accepted are {FORMS}")
        self.url = url


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    threads: int = 4,
    encryption: Encryption | None = None,
) -> PartedStore:
    """The store at ``url``, for simultaneous calls from up to ``threads`` threads.

    Nothing is contacted or created before ``check()``. ``endpoint_url``, ``region`` and
    ``encryption`` are for S3 only; the first two override boto3's own configuration.
    Raises StoreUrlError, a ValueError.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreUrlError(url, f"is not a URL ({error})") from error
    if parts.query or parts.fragment:
        raise StoreUrlError(url, "has a query or a fragment")
    if parts.scheme == "file":
        if parts.netloc:
            raise StoreUrlError(url, f"names the host {parts.netloc!r}, but files are local")
        directory = unquote(parts.path)
        if not directory.startswith("/") or directory.strip("/") == "":
            raise StoreUrlError(url, "does not name a directory")
        if "\0" in directory:
            raise StoreUrlError(url, "contains a zero byte")
        from uploader.stores.file import FileStore

        return FileStore(directory)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise StoreUrlError(url, "does not name a bucket")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise StoreUrlError(
                url, "must have only a bucket before its path: credentials come from boto3's chain"
            )
        if endpoint_url is not None and urlsplit(endpoint_url).scheme not in ("http", "https"):
            raise StoreUrlError(
                url, f"has the endpoint {endpoint_url!r}, which is not an http(s) URL"
            )
        from uploader.stores.s3 import S3Store

        return S3Store(
            parts.netloc,
            parts.path.strip("/"),
            endpoint_url=endpoint_url,
            region=region,
            threads=threads,
            encryption=encryption,
        )
    raise StoreUrlError(url, "has an unknown scheme")
