"""Opens the Iceberg catalog, and explains in one sentence why one cannot be used.

By default the catalog is an SQLite file in the data directory. Any other that pyiceberg supports is
given by its properties, or by the name of an entry in pyiceberg's own configuration. The functions
import pyiceberg, which takes most of a second.

Nothing here touches a table.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from compaction.access.ledger_access import LedgerAccess
from compaction.access.redaction import redacted, redacted_text, secrets_of
from compaction.inputs.place import Place, permission_hint
from compaction.tables.errors import LakeUnusable
from compaction.tables.table_state import check_properties
from ledger.table_names import NAMESPACE

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from compaction.tables.fileio import LakeFileIO

DEFAULT_NAME = "headgate"
SQLITE_TIMEOUT_S = 30  # how long a commit waits for that of another process

_FORBIDDEN = ("ACCESS_DENIED", "AccessDenied", "Forbidden", "INVALID_ACCESS_KEY", "SIGNATURE")

# What the server of a REST catalog may decide.
_TOLD = ("prefix", "namespace-separator", "rest-page-size")

_lock = threading.Lock()
_open_catalogs = 0


def open_catalog(
    place: Place, properties: Mapping[str, str], name: str | None = None,
    owner: LedgerAccess | None = None,
) -> Catalog:  # fmt: skip
    """The catalog, with the namespace of the tables in it. Raises LakeUnusable.

    ``name`` is an entry of pyiceberg's own configuration; ``properties`` override it.
    """
    from pyiceberg.catalog import AVAILABLE_CATALOGS, CatalogType, load_catalog
    from pyiceberg.exceptions import NamespaceAlreadyExistsError

    from compaction.tables.fileio import LakeFileIO, properties_of
    from compaction.tables.owner_catalog import OwnerCatalog

    uri = properties.get("uri", "")
    shown = f"the catalog {name!r}" if name else f"the catalog at {redacted(uri) or 'no address'}"
    if owner is not None:
        shown = "the catalog of the data directory"
    given = {**properties_of(place), **_prepared(properties)}
    if name is None and not _is_rest(properties):
        given.setdefault("warehouse", place.lake)
    AVAILABLE_CATALOGS[CatalogType.REST] = _rest_catalog
    refusals: tuple[type[Exception], ...] = (*outside_errors(), ValueError, ImportError)
    files = LakeFileIO(properties_of(place), late=owner is not None)
    try:
        catalog = (
            load_catalog(name or DEFAULT_NAME, **given)
            if owner is None
            else OwnerCatalog(owner, files, **given)
        )
        _confine(catalog, files)
        try:
            if not catalog.namespace_exists(NAMESPACE):
                catalog.create_namespace(NAMESPACE)
        except NamespaceAlreadyExistsError:
            pass  # another process was quicker
        except BaseException:
            catalog.close()
            raise
    except refusals as error:
        raise translated(error, shown, properties) from error
    with _lock:
        global _open_catalogs
        _open_catalogs += 1
    return catalog


def close_catalog(catalog: Catalog) -> None:
    """Closes a catalog that ``open_catalog`` returned. The last one ends pyiceberg's threads."""
    catalog.close()
    with _lock:
        global _open_catalogs
        _open_catalogs -= 1
        if _open_catalogs == 0:
            _end_threads()


def outside_errors() -> tuple[type[Exception], ...]:
    """Errors of catalogs, networks, and stores that pyiceberg passes on. The outcome of the call is
    unknown then."""
    from botocore.exceptions import BotoCoreError
    from pyarrow.lib import ArrowException
    from pyiceberg import exceptions
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    return (
        exceptions.RESTError,
        exceptions.NotInstalledError,
        exceptions.NoSuchPropertyException,
        exceptions.SignError,
        exceptions.WaitingForLockException,
        exceptions.NoSuchNamespaceError,
        SQLAlchemyError,
        RequestException,
        BotoCoreError,
        ArrowException,
        OSError,
    )


def damage_errors() -> tuple[type[Exception], ...]:
    """Errors that pyiceberg raises for files that are gone, cut short, or not JSON or Avro."""
    from pyiceberg.exceptions import ResolveError, ValidationError

    return (
        FileNotFoundError,
        ValidationError,
        ResolveError,
        ValueError,
        EOFError,
        LookupError,
        ArithmeticError,
        SystemError,  # a negative length, in its C decoder
        MemoryError,  # a length of terabytes
    )


def translated(
    error: BaseException, what: str, properties: Mapping[str, str] | None = None
) -> LakeUnusable:
    """The error from outside as one sentence that begins with ``what``, without secrets."""
    from pyiceberg import exceptions

    said = _hide(redacted_text(" ".join(str(error).split())), properties or {})
    said = said[:300] or type(error).__name__
    if isinstance(error, exceptions.UnauthorizedError | exceptions.OAuthError):
        return LakeUnusable(
            f"{what} refuses the credentials ({said})", "set its `token` or `credential` again"
        )
    if isinstance(error, exceptions.ForbiddenError | PermissionError) or _forbids(error):
        return LakeUnusable(
            f"{what} cannot be used: access is denied ({said})",
            permission_hint(error)
            or "allow this user or these credentials to read, write, list, and delete there",
        )
    if isinstance(error, exceptions.NotInstalledError | ImportError):
        return LakeUnusable(
            f"{what} needs a package that is not installed ({said})",
            "install pyiceberg with the extra for this kind of catalog",
        )
    if isinstance(error, ValueError | exceptions.NoSuchPropertyException):
        return LakeUnusable(
            f"{what} is not configured ({said})",
            "set `catalog_uri`, or add the catalog to pyiceberg's configuration",
        )
    return LakeUnusable(
        f"{what} cannot be used ({said})",
        "check that it runs, and that its address and password are right",
    )


def _rest_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """A REST catalog whose server tells nothing but how it is spoken to. pyiceberg would take all
    its settings from the server: a class to import and call (``auth``), another address, and where
    our credentials go."""
    from pyiceberg.catalog.rest import RestCatalog

    class ConfinedRestCatalog(RestCatalog):
        def _fetch_config(self) -> None:
            given, uri = dict(self.properties), self.uri
            super()._fetch_config()
            told = {key: self.properties[key] for key in _TOLD if key in self.properties}
            self.properties, self.uri = {**given, **told}, uri

    return ConfinedRestCatalog(name, **properties)


def _confine(catalog: Catalog, files: LakeFileIO) -> None:
    """Lets no property of a table choose code: pyiceberg imports and calls what ``py-io-impl`` and
    ``write.py-location-provider.impl`` name, even when it only loads a table.

    Files are read and written by ``files``, and a commit looks at the properties of the version
    that it changes, which may be newer than the one that was loaded.
    """
    from pyiceberg.catalog import MetastoreCatalog

    vars(catalog)["_load_file_io"] = lambda *_args, **_named: files
    if not isinstance(catalog, MetastoreCatalog):
        return  # commits are staged by its server
    stage = catalog._update_and_stage_table

    def checked(current: Table | None, *args: Any, **named: Any) -> Any:
        if current is not None:
            check_properties(current.metadata.properties, ".".join(current.name()))
        return stage(current, *args, **named)

    vars(catalog)["_update_and_stage_table"] = checked


def _forbids(error: BaseException) -> bool:
    return isinstance(error, OSError) and any(word in str(error) for word in _FORBIDDEN)


def _is_rest(properties: Mapping[str, str]) -> bool:
    kind = properties.get("type")
    return kind == "rest" or (
        kind is None and urlsplit(properties.get("uri", "")).scheme in ("http", "https")
    )


def _prepared(properties: Mapping[str, str]) -> dict[str, str]:
    found = dict(properties)
    uri = found.get("uri", "")
    if uri.startswith("sqlite:///") and "?" not in uri:
        path = uri.removeprefix("sqlite:///")
        folder = os.path.dirname(path)
        if path and not os.path.isdir(folder or "."):
            raise LakeUnusable(
                f"there is no folder {folder} for the catalog {path}",
                "make it, or set `catalog_uri` to a catalog that exists",
            )
        found["uri"] = f"{uri}?timeout={SQLITE_TIMEOUT_S}"
    return found


def _hide(said: str, properties: Mapping[str, str]) -> str:
    """An error of a catalog without the secrets among its properties."""
    hidden = {value for key, value in properties.items() if key not in ("uri", "type", "warehouse")}
    hidden |= secrets_of(properties.get("uri", ""))
    return "" if any(each in said for each in hidden if each) else said


def _end_threads() -> None:
    """Ends pyiceberg's pool of threads, which it never does itself and Python waits for."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    pool = ExecutorFactory._instance
    if pool is not None and ExecutorFactory._instance_pid == os.getpid():
        pool.shutdown(wait=True)
        ExecutorFactory._instance = None
