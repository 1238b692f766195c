"""How pyiceberg reads and writes metadata files: through the place, durably, and counted.

pyiceberg makes a FileIO from properties that are strings, so these describe the place. S3 is used
through the place's file system, with boto3's credentials, which are replaced when they expire.
Local files and their folders are written with fsync, which pyarrow does not do: a catalog that
survives a power failure must not name metadata that did not. Who keeps the pointers itself may have
all files of a commit settled together instead, which costs the disk a third.

Names of metadata files contain a UUID, so no file is looked for before it is written.

No file outside the lake is read, written or removed, whatever a table's metadata names.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, cast

import msgspec
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from compaction.inputs.output import open_output
from compaction.inputs.place import PLACES_MAX, Place
from ledger.lake.catalog import is_below
from ledger.private_files import FOLDER, opener
from uploader.stores.base import Encryption
from uploader.stores.counted import Requests

FILE_IO = "compaction.tables.fileio.LakeFileIO"
_URL, _ENDPOINT, _REGION, _LAKE, _SSE, _KMS_KEY = (
    "headgate.store-url",
    "headgate.endpoint-url",
    "headgate.region",
    "headgate.lake-url",
    "headgate.sse",
    "headgate.sse-kms-key-id",
)

_lock = threading.Lock()
_requests: dict[Place, Requests] = {}


def properties_of(place: Place) -> dict[str, str]:
    """The properties from which pyiceberg makes a LakeFileIO for the place."""
    found = {"py-io-impl": FILE_IO, _URL: place.url, _LAKE: place.lake_url}
    if place.endpoint_url is not None:
        found[_ENDPOINT] = place.endpoint_url
    if place.region is not None:
        found[_REGION] = place.region
    if place.encryption is not None:
        found[_SSE] = place.encryption.algorithm
        if place.encryption.kms_key_id is not None:
            found[_KMS_KEY] = place.encryption.kms_key_id
    return found


def requests_of(place: Place) -> Requests:
    """Requests for metadata of a place by this process so far, as S3 bills them."""
    with _lock:
        counted = _requests.get(place, Requests())
        return msgspec.structs.replace(counted)


def _count(place: Place, *, puts: int = 0, gets: int = 0, deletes: int = 0) -> None:
    with _lock:
        if place not in _requests and len(_requests) >= PLACES_MAX:
            del _requests[next(iter(_requests))]
        counted = _requests.setdefault(place, Requests())
        counted.puts += puts
        counted.gets += gets
        counted.deletes += deletes


class OutsideLake(Exception):
    """The location of a file that is not in the lake."""


class LakeFileIO(FileIO):
    """pyiceberg's access to files. Raises OutsideLake.

    ``late``: local files are durable only after ``settle``. Threads may share it.
    """

    def __init__(self, properties: Properties = EMPTY_DICT, late: bool = False) -> None:
        super().__init__(properties)
        # By folder: what was written there, or made for it, and is not durable yet.
        self._unsettled: dict[str, set[str]] | None = {} if late else None
        encryption = None
        if _SSE in properties:
            encryption = Encryption(properties[_SSE], properties.get(_KMS_KEY))
        self._place = Place(
            properties[_URL],
            properties.get(_ENDPOINT),
            properties.get(_REGION),
            properties.get(_LAKE, ""),
            encryption,
        )

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _In(self._inside(location), self._place)

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        return _Out(self._inside(location), self._place, self._unsettled)

    def settle(self, location: str) -> None:
        """Returns when all that was written to the folder of ``location`` is durable. Raises
        OSError."""
        if self._unsettled is None or not location.startswith("file://"):
            return
        folder = os.path.dirname(self._place.path_of(location))
        with _lock:
            written = self._unsettled.pop(folder, set())
        try:
            for path in sorted(written, reverse=True):  # a folder after what is in it
                _sync(path)
        except OSError:
            with _lock:
                self._unsettled.setdefault(folder, set()).update(written)
            raise

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Removes a file. A missing file is not an error."""
        text = self._inside(location if isinstance(location, str) else location.location)
        _count(self._place, deletes=1)
        path = self._place.path_of(text)
        with _lock:
            (self._unsettled or {}).get(os.path.dirname(path), set()).discard(path)
        try:
            _filesystem(self._place).delete_file(path)
        except FileNotFoundError:
            return

    def _inside(self, location: str) -> str:
        if not is_below(location, self._place.lake):
            raise OutsideLake(f"{location[:300]} is not below {self._place.lake}/")
        return location


class _In(InputFile):
    def __init__(self, location: str, place: Place) -> None:
        super().__init__(location)
        self._place = place

    def __len__(self) -> int:
        return int(_info(self._place, self.location).size)

    def exists(self) -> bool:
        try:
            _info(self._place, self.location)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        _count(self._place, gets=2)  # pyarrow asks for the size first
        opened = _filesystem(self._place).open_input_file(self._place.path_of(self.location))
        return cast(InputStream, opened)


class _Out(OutputFile):
    def __init__(
        self, location: str, place: Place, unsettled: dict[str, set[str]] | None = None
    ) -> None:
        super().__init__(location)
        self._place = place
        self._unsettled = unsettled

    def __len__(self) -> int:
        return int(_info(self._place, self.location).size)

    def exists(self) -> bool:
        return _In(self.location, self._place).exists()

    def to_input_file(self) -> InputFile:
        return _In(self.location, self._place)

    def create(self, overwrite: bool = False) -> OutputStream:
        _count(self._place, puts=1 if self._place.encryption is None else 3)
        if self.location.startswith("file://"):
            return _DurableFile(self._place.path_of(self.location), self._unsettled)
        return cast(OutputStream, open_output(self._place, self.location))


class _DurableFile:
    """A local file that is durable, with its name, once it is closed, or once it is settled."""

    def __init__(self, path: str, unsettled: dict[str, set[str]] | None) -> None:
        self._folder = os.path.dirname(path)
        self._path = path
        self._unsettled = unsettled
        self._changed = _make_folders(self._folder)
        self._file = open(path, "wb", opener=opener)  # noqa: SIM115 - closed by close
        self._written = 0

    def write(self, b: bytes) -> int:
        self._written += len(b)
        return self._file.write(b)

    def tell(self) -> int:
        return self._written

    def close(self) -> None:
        if self._file.closed:
            return
        self._file.close()
        written = {self._path, self._folder, *self._changed}
        if self._unsettled is None:
            for path in sorted(written, reverse=True):
                _sync(path)
            return
        with _lock:
            self._unsettled.setdefault(self._folder, set()).update(written)

    def __enter__(self) -> _DurableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_folders(folder: str) -> list[str]:
    """Makes a folder and those above it; returns the folders in which names are new."""
    if os.path.isdir(folder):
        return []
    above = os.path.dirname(folder)
    changed = _make_folders(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, FOLDER)
    return [*changed, above]


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _filesystem(place: Place) -> Any:
    return place.filesystem()[0]


def _info(place: Place, location: str) -> Any:
    from pyarrow.fs import FileType

    _count(place, gets=1)
    info = _filesystem(place).get_file_info(place.path_of(location))
    if info.type == FileType.NotFound:
        raise FileNotFoundError(f"there is no file {location}")
    return info
