"""What each command does, in terms of the API; prints results to standard output and all else to standard error."""

from __future__ import annotations

import json as json_module
import shlex
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from pairstill import api
from pairstill.data.sources import SourceSpec
from pairstill.errors import PairstillError, unknown
from pairstill.evaluation.text_adaptation import TextAdaptation
from pairstill.features.parallel_extraction import extract
from pairstill.features.prepared_folder import prepare as prepare_folder
from pairstill.runtime.launchers import LauncherName, launcher_named
from pairstill.towers.npm_weights import NpmArchive
from pairstill.towers.passes import Passes, Precision
from pairstill.towers.two_tower import Towers
from pairstill.training.training_recipe import RecipeChanges

DEFAULT_TOWERS = Towers()
AS_USUAL = RecipeChanges()

out_console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
"""Prints names as they are: brackets and colons in a path are no markup."""


def prepare(
    source: str,
    out: str | None = None,
    towers: Towers = DEFAULT_TOWERS,
    images: str | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    streaming: bool = False,
    limit: int | None = None,
    on_bad: Literal["error", "skip"] = "error",
    seed: int = 0,
    workers: int = 2,
    launcher: LauncherName = "local",
    jobs: int = 1,
    address: str | None = None,
    device: api.Device = "auto",
) -> None:
    """Check a dataset, split it, and cache its features, so that later commands start at once.

    Args:
        source: `emoji`; a folder of images with metadata.jsonl or a CSV; a Karpathy JSON (Flickr8k/30k, COCO);
            parquet files; webdataset shards; or the name of a dataset on the Hugging Face Hub.
        out: Folder to make.
        towers: The encoders, the image size, and what is trained.
        images: Folder of the images, where it is not beside the JSON.
        image_column: Column of the images, where it can't be guessed.
        caption_column: Column of the captions, where it can't be guessed.
        split_column: Column that says train, val or test.
        val_fraction: Share of images for validation, where the source has no split.
        test_fraction: Share of images for test, where the source has no split.
        streaming: Read a Hub dataset or shards without fetching all of it first.
        limit: At most this many images of each split.
        on_bad: Stop at unreadable images and empty captions, or leave them out and count them.
        seed: For splits that are drawn here.
        workers: Processes that decode images.
        launcher: Where features are computed: on this machine, or on a Ray cluster (pip install 'pairstill[ray]').
        jobs: Parts of the features at a time, each in a process of its own.
        address: Of the Ray cluster, such as auto or ray://head:10001; a new one is started here without.
        device: Where features are computed.
    """
    folder = _needed(out, "--out", "the folder to make")
    spec = SourceSpec(
        source, images, image_column, caption_column, split_column, val_fraction, test_fraction,
        streaming, limit, seed, on_bad,
    )  # fmt: skip
    prepared, found = prepare_folder(spec, folder, towers, workers)
    for line in found:
        out_console.print(line)
    extract(prepared, towers, workers, api.device_named(device), launcher_named(launcher, jobs, address))
    out_console.print(f"\n{folder}: ready, fingerprint {prepared.dataset.fingerprint}, {towers.describe()}")


def experts(
    data: str,
    out: str | None = None,
    count: int = 20,
    recipe: RecipeChanges = AS_USUAL,
    keep_epochs: list[int] = [],  # noqa: B006 (jsonargparse needs a list; it is never changed)
    seed: int = 0,
    import_images: list[str] = [],  # noqa: B006
    import_texts: list[str] = [],  # noqa: B006
    launcher: LauncherName = "local",
    jobs: int = 1,
    address: str | None = None,
    device: api.Device = "auto",
) -> None:
    """Train experts from one shared anchor, and keep their epochs. Run again to continue, or with a larger --count.

    Args:
        data: A prepared dataset.
        out: Folder of the bank.
        count: Experts in the bank when it is done.
        recipe: What is different in how an expert is trained.
        keep_epochs: Epochs of each expert that the bank keeps, as a list such as [2,5,10]; all when left out.
        seed: Of the anchor and of the experts.
        import_images: Instead of training, image buffers (.pt) of LoRS or MTT-VL, as a list: [a.pt,b.pt].
        import_texts: The text buffers that belong to them.
        launcher: Where experts train: on this machine, or on a Ray cluster (pip install 'pairstill[ray]').
        jobs: Experts at a time, each in a process of its own.
        address: Of the Ray cluster, such as auto or ray://head:10001; a new one is started here without.
        device: Where to train.
    """
    folder = _needed(out, "--out", "the folder of the bank")
    if import_images or import_texts:
        bank = api.import_experts(data, folder, import_images, import_texts)
    else:
        launched = launcher_named(launcher, jobs, address)
        bank = api.train_experts(data, folder, count, recipe, seed, device, launched, keep_epochs)
    out_console.print(f"{folder}: {len(bank.experts)} experts, {len(bank.checkpoints)} checkpoints")


def distill(
    data: str,
    out: str | None = None,
    method: str = api.DEFAULT_METHOD,
    pairs: int = 100,
    bank: str | None = None,
    protocol: str = "clean",
    seed: int = 0,
    resume: bool = False,
    micro_batch: int | None = None,
    precision: Precision = "float32",
    device: api.Device = "auto",
    student: RecipeChanges = AS_USUAL,
    settings: Any = None,
) -> None:
    """Distil prepared data into a few pairs. Ctrl-C is safe: --resume goes on to the same result.

    Args:
        data: A prepared dataset.
        out: Folder of the distilled set; its run is kept in OUT/run.
        method: How to distil; `pairstill ls methods` lists them. A method's own options are --settings.NAME.
        pairs: How many pairs to make.
        bank: Experts, made by `pairstill experts`, for methods that need them.
        protocol: How the iteration is chosen; `pairstill ls protocols` lists them.
        seed: The same seed gives the same bytes.
        resume: Continue a run that was stopped.
        micro_batch: Images through the network at a time: the same result in less memory and more time. As many as
            take about 5 GiB when left out.
        precision: mixed computes in bfloat16 what bears it: faster on a GPU, not on a CPU.
        device: Where to compute.
        student: What is different in how students are trained, in the inner loop and where their recall chooses.
        settings: The method's own settings.
    """
    folder = _needed(out, "--out", "the folder of the distilled set")
    passes = Passes(micro_batch, precision)
    made = api.distill(data, folder, method, pairs, bank, protocol, settings, seed, resume, device, student, passes)
    score = shlex.join(["pairstill", "evaluate", str(folder), "--data", data])
    out_console.print(f"{folder}: {len(made)} pairs by {method}. Score it: {score}")


def evaluate(
    distilled: str,
    data: str | None = None,
    protocol: str = "clean",
    seeds: int = 5,
    towers: dict[str, int | float | str] = {},  # noqa: B006 (never changed)
    split: str = "test",
    seed: int = 0,
    json: bool = False,
    launcher: LauncherName = "local",
    jobs: int = 1,
    address: str | None = None,
    device: api.Device = "auto",
    student: RecipeChanges = AS_USUAL,
    texts: TextAdaptation = "as-is",
) -> None:
    """Train fresh students on a distilled set and print their recall on real pairs, mean ± standard deviation.

    Args:
        distilled: A distilled set, or `full` to train on all real pairs.
        data: The prepared dataset to score on.
        protocol: What is reported; `pairstill ls protocols` lists them.
        seeds: How many students.
        towers: What differs from the towers that the data was prepared for, such as --towers.image nfnet_l0.
        split: Where recall is taken.
        seed: Of the students.
        json: Print a JSON list of rows instead of a table.
        launcher: Where students train: on this machine, or on a Ray cluster (pip install 'pairstill[ray]').
        jobs: Students at a time, each in a process of its own.
        address: Of the Ray cluster, such as auto or ray://head:10001; a new one is started here without.
        device: Where to train.
        student: What is different in how a student is trained.
        texts: What students with another text encoder read: the set's embeddings through a linear map (translated, the
            best), the real captions that students of the set find for its images (retrieved), or those nearest to
            its texts (nearest).
    """
    folder = _needed(data, "--data", "the prepared dataset")
    launched = launcher_named(launcher, jobs, address)
    row = api.evaluate(distilled, folder, protocol, seeds, towers, split, seed, device, student, launched, texts)
    if json:
        print(json_module.dumps([row.to_dict()], indent=2))
        return
    from pairstill.studies.tables import results_table

    out_console.print(results_table([row], f"{row.towers}, protocol {row.protocol}, {row.split} split"))


def compare(
    recipe: str,
    out: str | None = None,
    data: str | None = None,
    launcher: LauncherName = "local",
    jobs: int = 1,
    address: str | None = None,
    micro_batch: int | None = None,
    device: api.Device = "auto",
) -> None:
    """Run every row of a recipe and write one table. Finished rows are reused; a failed one does not stop the others.

    Args:
        recipe: A YAML file with rows; recipes/ has one for every table.
        out: Folder of all results: the table (.md, .csv, .json, named after the recipe), sets and bank. Recipes
            that share it share every row that they have in common.
        data: A prepared dataset or a source, in place of the one that the recipe names.
        launcher: Where rows run: on this machine, or on a Ray cluster (pip install 'pairstill[ray]').
        jobs: Rows at a time, each in a process of its own; more than one helps only where cores or GPUs are idle.
        address: Of the Ray cluster, such as auto or ray://head:10001; a new one is started here without.
        micro_batch: Images through the network at a time while a set is made: the same rows in less memory and more
            time, or the other way round. As many as take about 5 GiB in each row when left out.
        device: Where to compute.
    """
    from pairstill.studies.comparison import compare as run
    from pairstill.studies.study import read_study

    folder = Path(_needed(out, "--out", "the folder of the results"))
    study = read_study(Path(recipe))
    launched = launcher_named(launcher, jobs, address)
    records, table = run(study, folder, data, launched, device, micro_batch), folder / f"{study.name}.md"
    out_console.print(table.read_text(encoding="utf-8"))
    if failed := [record for record in records if "error" in record]:
        raise PairstillError(f"{len(failed)} of {len(records)} rows failed; the others are in {table}.")


def train(
    distilled: str,
    data: str | None = None,
    out: str | None = None,
    seed: int = 0,
    device: api.Device = "auto",
    student: RecipeChanges = AS_USUAL,
    texts: TextAdaptation = "as-is",
) -> None:
    """Train one student on a distilled set and keep it: a model that finds images by texts and texts by images.

    Args:
        distilled: A distilled set, or `full` to train on all real pairs.
        data: The prepared dataset that it is tested on.
        out: Folder of the student.
        seed: Of the student.
        device: Where to train.
        student: What is different in how it is trained.
        texts: What it reads in place of the set's texts, where the data was prepared for another text encoder:
            translated, retrieved or nearest, as `pairstill evaluate` has them.
    """
    folder, source = _needed(out, "--out", "the folder of the student"), _needed(data, "--data", "the prepared dataset")
    kept = api.train_student(distilled, source, folder, seed, device, student, texts)
    out_console.print(f"{folder}: mean recall {kept.score['mean']:.1f} on the {kept.score['split']} split")


def export(distilled: str, out: str | None = None, to: str = "hf") -> None:
    """Write a distilled set in a form that other tools read. Images become 8-bit; the card says what was clipped.

    Args:
        distilled: A distilled set.
        out: Folder to write.
        to: hf (parquet, for datasets.load_dataset and a hub's viewer), webdataset (tar shards) or folder (PNG files).
    """
    from pairstill.sets.exports import export as write

    folder = write(distilled, _needed(out, "--out", "the folder of the export"), to)
    out_console.print(f"{folder}: exported as {to}", soft_wrap=True)


def push(folder: str, repo: str | None = None, private: bool = True, endpoint: str | None = None) -> None:
    """Upload a distilled set, an export of one, or a student to a hub, where you are logged in (`hf auth login`).

    Args:
        folder: What to upload.
        repo: Its name there, such as you/flickr8k-100.
        private: Whether only you may see it.
        endpoint: Another hub than the usual one.
    """
    from pairstill.sets.exports.push import push_to_hub

    address = push_to_hub(folder, str(_needed(repo, "--repo", "a name such as you/pairs")), private, endpoint)
    out_console.print(f"{folder} is at {address}", soft_wrap=True)


def report(folder: str, out: str | None = None) -> None:
    """Write one HTML file that shows a distilled set, a folder of sets, or a comparison. It needs only a browser.

    Args:
        folder: A distilled set, a folder of several (such as that of `pairstill demo`), or the --out of a comparison.
        out: The file to write; FOLDER/report.html when left out.
    """
    from pairstill.show.report.page import write_report

    path = write_report(Path(folder), Path(out) if out else None)
    out_console.print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB. Open it in a browser.", soft_wrap=True)


def serve(folder: str, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Show a folder of runs in a browser: progress as it happens, runs side by side, pairs, and search with students.

    Nothing can be changed from the page. Bound to another address than this machine's own, it asks for a token.

    Args:
        folder: Where runs, students and prepared data lie; nothing outside it is shown.
        host: The address to listen on.
        port: The port to listen on.
    """
    from pairstill.show.serve.server import serve as start

    start(Path(folder), host, port)


def ls(what: str | None = None) -> None:
    """List what there is to choose from.

    Args:
        what: methods, encoders, sources or protocols; all of them when left out.
    """
    listings = {"methods": _methods, "encoders": _encoders, "sources": _sources, "protocols": _protocols}
    if what is not None and what not in listings:
        raise unknown("listing", what, listings)
    for name, listing in listings.items():
        if what in (None, name):
            out_console.print(name, style="bold")
            for entry, summary in listing().items():
                out_console.print(f"  {entry:<20} {summary}")


def demo(out: str = "runs/demo") -> None:
    """The whole way on the embedded emoji set: rehearsal and MDM against random pairs, k-means and the full set.

    Args:
        out: Folder for everything that it makes; run again to continue or to see the table again.
    """
    from pairstill.cli.demo import run_demo

    run_demo(Path(out))


def _methods() -> dict[str, str]:
    from pairstill.methods import METHODS

    return {name: method.summary for name, method in METHODS.items()}


def _encoders() -> dict[str, str]:
    from pairstill.towers.weights import IMAGE_PRESETS, TEXT_PRESETS

    images = {name: f"image, timm {p.timm_name}, {_carrier([p.package], p.npm)}" for name, p in IMAGE_PRESETS.items()}
    texts = {name: f"text, {p.hub_id}, {_carrier(list(p.packages), p.npm)}" for name, p in TEXT_PRESETS.items()}
    return {
        **images,
        **texts,
        "any other name": "a timm model, a transformers model on the Hub, or a local folder",
    }


def _carrier(packages: list[str | None], npm: NpmArchive | None) -> str:
    if npm:
        return f"weights fetched by npm from {npm.package}"
    return (
        f"weights in {packages[0]}{' ...' if len(packages) > 1 else ''}"
        if packages and packages[0]
        else "weights from the Hub"
    )


def _sources() -> dict[str, str]:
    from pairstill.data.sources import SOURCES

    return {name: source.summary for name, source in SOURCES.items()}


def _protocols() -> dict[str, str]:
    from pairstill.training.protocols import PROTOCOLS

    return {name: protocol.summary for name, protocol in PROTOCOLS.items()}


def _needed(value: str | None, option: str, what: str) -> Path:
    if value is None:
        raise PairstillError(f"{option} is missing: give {what}.")
    return Path(value)
