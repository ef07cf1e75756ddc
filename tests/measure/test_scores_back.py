"""An audit's scores, back where people look at traces: inspect_ai's logs, Langfuse, trackio."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Literal

import msgspec
import pytest
from agent_rows import file_of, lines_of, rollout
from doors import ByteCount
from faulty_server import FaultyServer
from served import invoked

from faithful_search.errors import ConfigError
from faithful_search.measure.audit import audit
from faithful_search.measure.convert import convert

KEYS = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1"}


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a score that Langfuse documents."""

    name: str
    value: float
    id: str | None = None
    traceId: str | None = None
    comment: str | None = None
    dataType: Literal["NUMERIC", "BOOLEAN", "CATEGORICAL"] | None = None


class ScoreEvent(msgspec.Struct, forbid_unknown_fields=True):
    """An event that creates a score."""

    id: str
    timestamp: str
    type: Literal["score-create"]
    body: ScoreBody


class Ingestion(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to the ingestion API."""

    batch: list[ScoreEvent]


def ingest(request):
    """What Langfuse answers: 207 with the events it took, those of `t2` refused."""
    events = msgspec.json.decode(request.data, type=Ingestion).batch
    taken = [event for event in events if event.body.traceId != "t2"]
    refused = [event for event in events if event.body.traceId == "t2"]
    return 207, {
        "successes": [{"id": event.id, "status": 201} for event in taken],
        "errors": [{"id": e.id, "status": 400, "message": "no such trace"} for e in refused],
    }


@pytest.fixture
def langfuse(monkeypatch):
    with FaultyServer(ingest) as server:
        monkeypatch.setenv("LANGFUSE_BASE_URL", server.url)
        for name, key in KEYS.items():
            monkeypatch.setenv(name, key)
        yield server


def audited(tmp_path, ids):
    """A file with rows of these ids, and the folder of its audit."""
    file = file_of(tmp_path / "a.jsonl", [rollout(n) | {"id": each} for n, each in enumerate(ids)])
    folder = tmp_path / "a-audit"
    audit(file, folder, metrics=("answer_correctness", "tool_use"), workers=1)
    return file, folder


def push(file, folder, to="langfuse", *more):
    return invoked("push", "scores", file, "--scores", folder, "--to", to, *more)


def sent_to(server):
    return [event["body"] for request in server.requests for event in request.body["batch"]]


def test_langfuse_is_sent_a_score_for_each_result(tmp_path, langfuse):
    file, folder = audited(tmp_path, ["t0", "t1"])
    push(file, folder)
    traces = {body["traceId"] for body in sent_to(langfuse) if body["name"].startswith("exact")}
    assert traces == {"t0", "t1"}


def test_a_score_has_the_value_of_the_audit(tmp_path, langfuse):
    file, folder = audited(tmp_path, ["t0"])
    push(file, folder)
    [line] = lines_of(folder / "scores.jsonl")
    values = {body["name"]: body["value"] for body in sent_to(langfuse)}
    known = {name: cell.get("value") for name, cell in line["scores"].items()}
    assert values == {name: value for name, value in known.items() if value is not None}


def test_scores_without_a_value_are_counted_and_not_sent(tmp_path, langfuse):
    file = file_of(tmp_path / "a.jsonl", [rollout(0) | {"id": "t0", "answers": []}])
    folder = tmp_path / "a-audit"
    audit(file, folder, metrics=("answer_correctness",), workers=1)
    done = push(file, folder)
    assert "scores without a value, which were left out" in done.stdout


def test_sending_twice_replaces_the_scores(tmp_path, langfuse):
    file, folder = audited(tmp_path, ["t0"])
    push(file, folder)
    push(file, folder)
    identities = [body["id"] for body in sent_to(langfuse)]
    half = len(identities) // 2
    assert identities[:half] == identities[half:]


def test_refused_scores_are_told(tmp_path, langfuse):
    file, folder = audited(tmp_path, ["t0", "t2"])
    done = push(file, folder)
    assert (done.exit_code, "no such trace" in done.stderr) == (3, True)


def test_the_keys_are_sent_as_basic_auth(tmp_path, langfuse):
    push(*audited(tmp_path, ["t0"]))
    assert langfuse.headers[0]["Authorization"] == "Basic cGstbGYtMTpzay1sZi0x"


def test_a_missing_key_is_named(tmp_path, langfuse, monkeypatch):
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    done = push(*audited(tmp_path, ["t0"]))
    assert "LANGFUSE_SECRET_KEY" in done.stderr


def test_a_server_that_refuses_the_keys_is_an_error(tmp_path, langfuse):
    langfuse.mode = (401, "Invalid credentials")
    done = push(*audited(tmp_path, ["t0"]))
    assert (done.exit_code, "check the address and keys" in done.stderr) == (1, True)


def test_another_server_is_an_error(tmp_path, langfuse):
    langfuse.answer = lambda request: (200, {"ok": True})
    done = push(*audited(tmp_path, ["t0"]))
    assert "does not answer as Langfuse's ingestion API" in done.stderr


def test_a_row_without_an_id_is_counted(tmp_path, langfuse):
    done = push(*audited(tmp_path, ["t0", ""]))
    assert (done.exit_code, "row 2: no id of a trace" in done.stderr) == (3, True)


def test_requests_can_be_written_to_a_file(tmp_path):
    file, folder = audited(tmp_path, ["t0", "t1"])
    convert(file, tmp_path / "out.jsonl", "langfuse", scores=folder)
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    bodies = [msgspec.json.decode(line, type=Ingestion) for line in lines]
    assert [body.batch[0].body.traceId for body in bodies] == ["t0", "t1"]


def test_langfuses_own_types_take_the_requests(tmp_path):
    types = pytest.importorskip("langfuse.api.ingestion", reason="needs langfuse 4")
    from langfuse.api.core.pydantic_utilities import parse_obj_as

    file, folder = audited(tmp_path, ["t0"])
    convert(file, tmp_path / "out.jsonl", "langfuse", scores=folder)
    [line] = lines_of(tmp_path / "out.jsonl")
    events = [parse_obj_as(types.ScoreEvent, event) for event in line["batch"]]
    assert {event.body.trace_id for event in events} == {"t0"}


@pytest.mark.parametrize("to", ["langfuse", "inspect"])
def test_a_format_of_scores_needs_an_audit(tmp_path, to):
    file = file_of(tmp_path / "a.jsonl", [rollout(0)])
    with pytest.raises(ConfigError, match="--scores"):
        convert(file, tmp_path / "out.eval", to)


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_gets_a_run_with_the_rows(tmp_path):
    file, folder = audited(tmp_path, ["t0", "t1"])
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    push_rows = "from faithful_search.cli import main; main()"
    arguments = ["push", "scores", str(file), "--scores", str(folder), "--to", "trackio"]
    printed = run([sys.executable, "-c", push_rows, *arguments, "--project", "p"], environment)
    assert printed.count("Run finished") == 1
    listing = [sys.executable, "-m", "trackio.cli", "list", "traces", "--project", "p", "--json"]
    traces = json.loads(run(listing, environment))["traces"]
    scores = {trace["metadata"]["id"]: trace["metadata"]["scores"] for trace in traces}
    lines = lines_of(folder / "scores.jsonl")
    assert scores == {line["id"]: values_of(line) for line in lines}


def values_of(line: dict[str, Any]) -> dict[str, Any]:
    return {name: cell.get("value") for name, cell in line["scores"].items()}


def run(command, environment):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A finished log of inspect's own loop: two samples in two epochs."""
    inspect_ai = pytest.importorskip("inspect_ai", reason="needs the extra adapters")
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import match

    samples = [
        Sample(input="Capital of Peru?", target="Lima", id="a"),
        Sample(input="Capital of Chile?", target="", id="b"),
    ]
    outputs = [ModelOutput.from_content("mockllm/model", "Lima") for _ in range(4)]
    task = inspect_ai.Task(dataset=MemoryDataset(samples), scorer=match(), epochs=2)
    model = get_model("mockllm/model", custom_outputs=outputs)
    folder = str(tmp_path_factory.mktemp("logs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiktoken.get_encoding", lambda name: ByteCount())
        [log] = inspect_ai.eval(task, model=model, log_dir=folder, display="none")
    return log


@pytest.fixture(scope="module")
def scored(log, tmp_path_factory):
    """The log with an audit's scores, read by inspect."""
    from inspect_ai.log import read_eval_log

    tmp_path = tmp_path_factory.mktemp("scored")
    audit(log.location, tmp_path / "audit", metrics=("answer_correctness",), workers=1)
    out = tmp_path / "scored.eval"
    done = invoked("convert", log.location, out, "--to", "inspect", "--scores", tmp_path / "audit")
    assert done.exit_code == 0, done.stderr
    return read_eval_log(str(out))


EXACT_MATCH = "faithful_search/exact_match_unicode"


def test_an_inspect_log_gets_the_audits_scores(scored):
    right = [sample.scores[EXACT_MATCH].value for sample in scored.samples if sample.id == "a"]
    assert right == [1.0, 1.0]


def test_a_score_without_a_value_is_unscored_there(scored):
    [score, _] = [sample.scores[EXACT_MATCH] for sample in scored.samples if sample.id == "b"]
    assert (math.isnan(score.value), score.reason) == (True, "scoring_failed")


def test_inspects_means_leave_it_out(scored):
    [result] = [score for score in scored.results.scores if score.name == EXACT_MATCH]
    counts = result.scored_samples, result.unscored_samples
    assert (result.metrics["mean"].value, counts) == (1.0, (2, 2))


def test_scores_of_other_scorers_stay(log, scored):
    [before], after = log.results.scores, scored.results.scores
    assert after[0] == before


def test_an_edit_says_who_made_it(scored):
    [edit] = scored.samples[0].scores[EXACT_MATCH].history
    assert edit.provenance.author == "faithful-search"


def test_an_inspect_log_has_its_own_endings(log, tmp_path):
    audit(log.location, tmp_path / "audit", metrics=("answer_correctness",), workers=1)
    with pytest.raises(ConfigError, match=r"ends in \.eval or \.json"):
        convert(log.location, tmp_path / "out.jsonl", "inspect", scores=tmp_path / "audit")
