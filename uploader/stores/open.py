"""From a URL to a store. boto3 is imported only where an S3 URL is used: it costs 0.2 s."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from uploader.stores.base import PartedStore

FORMS = "file:///absolute/directory, s3://bucket or s3://bucket/prefix"


class StoreUrlError(ValueError):
    """A store URL that names no store."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the store URL {url!r} {why}; accepted are {FORMS}")
        self.url = url


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    threads: int = 4,
) -> PartedStore:
    """The store at ``url``, for calls from up to ``threads`` threads at once.

    Nothing is contacted or created yet; ``check()`` does. ``endpoint_url`` and ``region`` are for
    S3 only and go before boto3's own configuration. Raises StoreUrlError, a ValueError.
    """
    if threads < 1:
        raise ValueError(f"a store is used by at least 1 thread, not {threads}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreUrlError(url, f"is no URL ({error})") from error
    if parts.query or parts.fragment:
        raise StoreUrlError(url, "has a query or a fragment")
    if parts.scheme == "file":
        if parts.netloc:
            raise StoreUrlError(url, f"names the host {parts.netloc!r}, and a file has none")
        directory = unquote(parts.path)
        if not directory.startswith("/") or directory.strip("/") == "":
            raise StoreUrlError(url, "names no directory")
        if "\0" in directory:
            raise StoreUrlError(url, "holds a zero byte")
        from uploader.stores.file import FileStore

        return FileStore(directory)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise StoreUrlError(url, "names no bucket")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise StoreUrlError(
                url, "has more than a bucket before its path: credentials come from boto3's chain"
            )
        if endpoint_url is not None and urlsplit(endpoint_url).scheme not in ("http", "https"):
            raise StoreUrlError(url, f"has an endpoint {endpoint_url!r} that is no http(s) URL")
        from uploader.stores.s3 import S3Store

        return S3Store(
            parts.netloc,
            parts.path.strip("/"),
            endpoint_url=endpoint_url,
            region=region,
            threads=threads,
        )
    raise StoreUrlError(url, "has no scheme that is known")
