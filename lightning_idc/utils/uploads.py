"""upload: the files of an output, and no others, to the Hugging Face hub."""

from __future__ import annotations

import glob
from typing import Any

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.manifest import read_manifest
from lightning_idc.utils.outputs import Output


def upload(output: Output, repo: str, message: str, private: bool = True, kind: str = "model") -> str:
    """Upload the files of an output, and no others, to the Hugging Face hub; return the address.

    Args:
        output: written output.
        repo: ``OWNER/NAME``, created if missing.
        message: commit message.
        private: whether a new repository is private.
        kind: ``model`` or ``dataset``.

    Raises:
        ConfigError: a file was modified, or the hub does not answer or rejects the upload.
    """
    from huggingface_hub import HfApi

    files = output.files()
    missing = sorted(read_manifest(output.folder).get(output.name, {}).keys() - set(files))
    if missing or not files:
        problem = f"{missing} were modified or removed" if missing else "it has no files"
        raise ConfigError(f"{str(output.folder)!r} cannot be uploaded: {problem}; write it again")
    try:
        api = HfApi()
        kinds: dict[str, Any] = {} if kind == "model" else {"repo_type": kind}
        api.create_repo(repo, private=private, exist_ok=True, **kinds)
        patterns = [glob.escape(file) for file in files]
        return str(
            api.upload_folder(
                repo_id=repo, folder_path=output.folder, commit_message=message, allow_patterns=patterns, **kinds
            )
        )
    except Exception as error:  # the network errors of the hub client differ between its versions
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConfigError(
            f"the upload to {repo!r} failed ({type(error).__name__}: {reason}); check the network, log in with "
            "`hf auth login`, and choose a repository that you may write to"
        ) from error
