"""upload: the files of an output, and no others, to the Hugging Face hub, without replacing files of others there."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import atomic_write, default_cache_dir, digest
from lightning_idc.utils.manifest import read_manifest
from lightning_idc.utils.outputs import Output
from lightning_idc.utils.text import hide_passwords

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_BLOCK = 1 << 20


def upload(
    output: Output, repo: str, message: str, private: bool = True, kind: str = "model", overwrite: bool = False
) -> str:
    """Upload the files of an output, and no others, to the Hugging Face hub; return the address.

    Args:
        output: written output.
        repo: ``OWNER/NAME``, created if missing.
        message: commit message.
        private: whether a new repository is private.
        kind: ``model`` or ``dataset``.
        overwrite: whether files of the repository that were not uploaded by this function may be replaced.

    Raises:
        ConfigError: a file was modified, or the repository has files of others under the same names, or the hub does
            not answer or rejects the upload.
    """
    from huggingface_hub import HfApi

    files = output.files()
    missing = sorted(read_manifest(output.folder).get(output.name, {}).keys() - set(files))
    if missing or not files:
        problem = f"{missing} were modified or removed" if missing else "it has no files"
        raise ConfigError(f"{str(output.folder)!r} cannot be uploaded: {problem}; write it again")
    ids = {file: _ids(output.folder / file) for file in files}
    record = default_cache_dir() / "uploads" / f"{digest(kind, '/', repo)}.json"
    try:
        api = HfApi()
        api.create_repo(repo, private=private, exist_ok=True, repo_type=kind)
        foreign = [] if overwrite else _foreign_files(api, repo, kind, ids, _read_record(record))
        if not foreign:
            address = api.upload_folder(
                repo_id=repo,
                folder_path=output.folder,
                commit_message=message,
                allow_patterns=[glob.escape(file) for file in files],
                repo_type=kind,
            )
    except Exception as error:  # the network errors of the hub client differ between its versions
        reason = hide_passwords(next(iter(str(error).strip().splitlines()), ""))
        raise ConfigError(
            f"the upload to {repo!r} failed ({type(error).__name__}: {reason}); check the network, log in with "
            "`hf auth login`, and choose a repository that you may write to"
        ) from error
    if foreign:
        raise ConfigError(
            f"{foreign[0]!r} of {repo!r} on the hub is not what this command uploaded before; name another "
            "repository, or replace it with --overwrite"
        )
    with suppress(OSError):  # then later uploads require --overwrite
        record.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(record, json.dumps({"repository": repo, "files": ids}, indent=1))
    return str(address)


def _foreign_files(
    api: HfApi, repo: str, kind: str, ids: Mapping[str, list[str]], uploaded: Mapping[str, list[str]]
) -> list[str]:
    """Files of the repository that would be replaced and were not uploaded by :func:`upload`."""
    foreign = []
    for remote in api.get_paths_info(repo, list(ids), repo_type=kind):
        lfs = getattr(remote, "lfs", None)
        id = getattr(remote, "blob_id", None) if lfs is None else lfs.sha256
        if id not in (*ids.get(remote.path, ()), *uploaded.get(remote.path, ())):
            foreign.append(remote.path)
    return sorted(foreign)


def _ids(path: Path) -> list[str]:
    """Ids that the hub may give to a file: its SHA-256 with git-lfs, otherwise the SHA-1 of its git blob."""
    lfs, blob = hashlib.sha256(), hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            lfs.update(block)
            blob.update(block)
    return [lfs.hexdigest(), blob.hexdigest()]


def _read_record(path: Path) -> dict[str, list[str]]:
    """Ids of the files of the last upload; empty if there was none, or the record is damaged."""
    try:
        files: Any = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(file): [str(id) for id in ids] for file, ids in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
