"""Upload to a model hub: sets and exports as datasets, students as models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pairstill.errors import PairstillError, without_secrets
from pairstill.sets.distilled_set import load

KINDS = {"distilled.json": "dataset", "export.json": "dataset", "student.json": "model"}
NOT_UPLOADED = ["run/*", "*.lock"]


def push_to_hub(folder: str | Path, repo: str, private: bool = True, endpoint: str | None = None) -> str:
    """Upload a folder; returns where it is now. The token is the one that the hub's own tools keep.

    Args:
        folder: A distilled set (verified first), an export, or a student.
        repo: Its name there, `owner/name`; made if it is not there.
        private: Whether only its owner may see it, if it is made now.
        endpoint: Another hub than the usual one.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    folder = Path(folder)
    kind = next((kind for name, kind in KINDS.items() if (folder / name).exists()), None)
    if kind is None:
        raise PairstillError(f"{folder} is neither a distilled set, nor an export, nor a student.")
    if (folder / "distilled.json").exists():
        load(folder)
    hub = HfApi(endpoint=endpoint)
    try:
        hub.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        done: Any = hub.upload_folder(
            repo_id=repo,
            folder_path=folder,
            repo_type=kind,
            ignore_patterns=NOT_UPLOADED,
            commit_message="Upload with pairstill",
        )
    except (HfHubHTTPError, ValueError, OSError) as error:
        raise PairstillError(
            f"{folder} could not be uploaded to {repo}: {error}. Are you logged in (hf auth login)? Is there a network?"
        ) from error
    return without_secrets(str(done.commit_url))
