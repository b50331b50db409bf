"""Tests of `fetch` on small local trees: python3 tests/official/test.py"""

import contextlib
import importlib.machinery
import importlib.util
import io
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("fetch", str(Path(__file__).with_name("fetch")))
loader_spec = importlib.util.spec_from_loader("fetch", loader)
fetch = importlib.util.module_from_spec(loader_spec)
loader.exec_module(fetch)

APIS = {
    "README.md": b"not a test",
    "src/tests/deep/other.io": b"a folder with the same name further down is not at the top",
    "tests/genesis.json": b"{}",
    "tests/eth_chainId/get-chain-id.io": b">> {}\n<< {}\n",
}
FIXTURES = {
    "fixtures/.meta/index.json": b"{}",
    "fixtures/state_tests/osaka/one.json": b'{"one":1}',
    "fixtures/state_tests/osaka/two.json": b'{"two":2}',
    "fixtures/state_tests/osaka/three.json": b'{"three":3}',
    "fixtures/blockchain_tests/osaka/four.json": b'{"four":4}',
    "fixtures/blockchain_tests/osaka/notes.md": b"no test",
    "fixtures/blockchain_tests_engine/osaka/five.json": b'{"five":5}',
}


def write_tree(folder, tree):
    for path, content in tree.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def write_archive(file, tree, top=""):
    with tarfile.open(file, "w:gz") as archive:
        for path, content in tree.items():
            member = tarfile.TarInfo(top + path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def tree_hash(folder):
    """The hash as the command in `fetch` prints it."""
    command = r"find . -type f | sed 's|^\./||' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum"
    return subprocess.check_output(["sh", "-c", command], cwd=folder, text=True).split()[0]


class Fetch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.apis = write_tree(self.work / "apis", APIS)
        self.fixtures = write_tree(self.work / "spec", FIXTURES)
        pinned = fetch.APIS_SHA256
        self.addCleanup(setattr, fetch, "APIS_SHA256", pinned)
        fetch.APIS_SHA256 = tree_hash(self.apis / "tests")

    def run_fetch(self, *arguments):
        """Returns what is printed, and the error that the command ends with."""
        output, error = io.StringIO(), None
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                fetch.main([str(argument) for argument in arguments])
            except SystemExit as end:
                error = str(end.code)
        return output.getvalue(), error

    def archived(self, shared):
        archive = shared / "vectors/ethereum-tests.tar.zst"
        tar = subprocess.check_output(["zstd", "--quiet", "--decompress", "--stdout", str(archive)])
        with tarfile.open(fileobj=io.BytesIO(tar)) as members:
            return {member.name: members.extractfile(member).read() for member in members}

    def test_local_folders_get_the_layout_that_the_tests_read(self):
        shared = self.work / "shared"
        _, error = self.run_fetch(
            shared, "--execution-apis", self.apis, "--execution-spec-tests", self.fixtures, "--every", 1
        )
        self.assertIsNone(error)
        vectors = shared / "vectors"
        self.assertEqual(sorted(path.name for path in vectors.iterdir()), ["ethereum-tests.tar.zst", "execution-apis"])
        files = [path for path in (vectors / "execution-apis").rglob("*") if path.is_file()]
        found = {"tests/" + path.relative_to(vectors / "execution-apis").as_posix(): path.read_bytes() for path in files}
        self.assertEqual(found, {path: content for path, content in APIS.items() if path.startswith("tests/")})
        expected = {
            f"eest/{path.removeprefix('fixtures/')}": content
            for path, content in FIXTURES.items()
            if path.endswith(".json") and ("/state_tests/" in path or "/blockchain_tests/" in path)
        }
        self.assertEqual(self.archived(shared), expected)

    def test_archives_give_the_same_as_folders(self):
        apis = write_archive(self.work / "apis.tar.gz", APIS, "execution-apis-50d1e5e/")
        fixtures = write_archive(self.work / "fixtures_develop.tar.gz", FIXTURES)
        shared = self.work / "shared"
        _, error = self.run_fetch(shared, "--execution-apis", apis, "--execution-spec-tests", fixtures, "--every", 1)
        self.assertIsNone(error)
        self.assertEqual(tree_hash(shared / "vectors/execution-apis"), fetch.APIS_SHA256)
        self.assertEqual(len(self.archived(shared)), 4)

    def test_a_tree_with_another_hash_is_rejected_and_nothing_is_left(self):
        for name, content in [("genesis.json", b"{ }"), ("eth_chainId/more.io", b"")]:
            changed = write_tree(self.work / name.replace("/", "-"), {**APIS, f"tests/{name}": content})
            shared = self.work / "shared"
            _, error = self.run_fetch(shared, "--only", "execution-apis", "--execution-apis", changed)
            self.assertIn(fetch.APIS_COMMIT, error)
            self.assertIn(fetch.APIS_SHA256, error)
            self.assertEqual(list((shared / "vectors").iterdir()), [])

    def test_what_is_there_is_not_overwritten(self):
        shared = self.work / "shared"
        arguments = [shared, "--only", "execution-apis", "--execution-apis", self.apis]
        self.assertIsNone(self.run_fetch(*arguments)[1])
        _, error = self.run_fetch(*arguments)
        self.assertIn("exists already", error)

    def test_a_part_is_the_same_in_each_run(self):
        parts = []
        for run in range(2):
            shared = self.work / f"shared-{run}"
            arguments = [shared, "--only", "execution-spec-tests", "--execution-spec-tests", self.fixtures, "--every", 2]
            self.assertIsNone(self.run_fetch(*arguments)[1])
            parts.append((shared / "vectors/ethereum-tests.tar.zst").read_bytes())
            self.assertIn(len(self.archived(shared)), range(1, 4))
        self.assertEqual(parts[0], parts[1])

    def test_a_folder_without_suites_is_rejected(self):
        arguments = ["--only", "execution-spec-tests", "--execution-spec-tests", self.apis]
        shared = self.work / "shared"
        _, error = self.run_fetch(shared, *arguments)
        self.assertIn("state_tests", error)
        self.assertEqual(list((shared / "vectors").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
