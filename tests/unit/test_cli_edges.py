"""Exit codes, errors in one line, signals, pipes and terminals."""

from __future__ import annotations

import ast
import json
import logging
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cli_calls import Shop, shop
from test_cli_looking import make_run

from milepost import SQLiteStore
from milepost.cli.app import cli
from milepost.cli.logs import OneLine
from milepost.model.info import Wait
from milepost.store import Release
from milepost.testing.tables import for_each
from milepost.views.text import in_options

__all__ = ["shop"]

wide = pytest.mark.wide

WRONG = [
    (2, ["blah"]),
    (2, ["show"]),
    (2, ["show", "a", "--bad"]),
    (2, ["runs", "--limit", "0"]),
    (2, ["runs", "--tag", "novalue"]),
    (2, ["runs", "--since", "1000000d"]),
    (2, ["runs", "--since", "9" * 400 + "w"]),
    (2, ["prune", "--older-than", "99999999999999w", "--yes"]),
    (2, ["worker", "--app", "shop:graph", "--poll", "1000000d"]),
    (2, ["worker", "--app", "shop:graph", "--grace", "1000000d"]),
    (2, ["runs", "--store", "nonsense"]),
    (2, ["run", "shop"]),
    (2, ["run", "shop:nothing"]),
    (2, ["run", "shop:builder"]),
    (2, ["run", "shop:number"]),
    (2, ["run", "nowhere:graph"]),
    (2, ["run", "nowhere.py:graph"]),
    (2, ["run", "broken.py:graph"]),
    (2, ["run", "exits.py:graph"]),
    (2, ["run", "bad_graph.py:graph"]),
    (2, ["run", "shop:graph", "{"]),
    (2, ["run", "shop:graph", "[1]"]),
    (2, ["run", "shop:graph", '{"id": 3}']),
    (2, ["run", "shop:graph", '{"id": "a", "colour": 1}']),
    (2, ["run", "shop:graph"]),
    (2, ["run", "shop:graph", "{}", "-i", "id=a"]),
    (2, ["run", "shop:graph", "-i", "id"]),
    (2, ["run", "shop:graph", "-i", "id=a", "-i", "id=b"]),
    (2, ["run", "shop:graph", "-i", "id=a", "--run-id", " "]),
    (2, ["run", "shop:graph", "-i", "id=a", "--store", "file://host/x"]),
    (2, ["run", "shop:graph", "-i", "id=a", "--store", "sqlite:///text.db"]),
    (2, ["resume", "a", "shop:graph", "--visit", "1"]),
    (2, ["resume", "a", "shop:graph", "--from", "nowhere"]),
    (2, ["state", "a", "--visit", "1"]),
    (2, ["demo", "--store", "memory://"]),
    (1, ["resume", "a", "shop:async_graph"]),
    (3, ["show", "nobody"]),
    (3, ["history", "nobody"]),
    (3, ["state", "nobody"]),
    (3, ["state", "a", "nowhere"]),
    (3, ["state", "a", "price", "--visit", "9"]),
    (3, ["diff", "a", "price", "99"]),
    (3, ["diff", "a", "price", "price#9"]),
    (3, ["diff", "a", "price", "5"]),
    (3, ["export", "nobody"]),
    (3, ["verify", "nobody"]),
    (3, ["delete", "nobody", "--yes"]),
    (3, ["resume", "nobody", "shop:graph"]),
    (3, ["resume", "nobody", "shop:graph", "--plan"]),
    (3, ["retry", "nobody", "shop:graph"]),
    (3, ["runs", "--after", "nobody"]),
    (3, ["runs", "--store", "sqlite:///nowhere.db"]),
    (3, ["runs", "--store", "sqlite:///other.db"]),
    (3, ["runs", "--store", "sqlite:///empty.db"]),
    (3, ["state", "a", "price#9"]),
]


@pytest.fixture
def mixed(shop: Shop) -> Shop:
    """A shop with a finished run, and files that are not what a command needs."""
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    (shop.folder / "text.db").write_text("no database, but long enough to be looked at" * 30, encoding="utf-8")
    (shop.folder / "broken.py").write_text("def (", encoding="utf-8")
    (shop.folder / "exits.py").write_text("import sys\nsys.exit()", encoding="utf-8")
    (shop.folder / "bad_graph.py").write_text(
        "from milepost import Graph\ngraph = Graph(dict).add_node('a', lambda s: s).add_edge('a', 'b').compile('x')",
        encoding="utf-8",
    )
    (shop.folder / "empty.db").touch()
    with closing(sqlite3.connect("other.db")) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    return shop


@for_each("code, arguments", WRONG)
def test_what_is_wrong_is_told_in_one_line(mixed: Shop, code: int, arguments: list[str]) -> None:
    answer = mixed.call(*arguments)
    assert (code, "") == (answer.code, answer.out)
    assert 1 == answer.err.count("\n")
    assert answer.err.startswith("milepost: ")
    assert "Traceback" not in answer.err


def test_an_error_names_options_as_they_are_typed(mixed: Shop) -> None:
    assert "milepost: --visit goes with a NODE (" in mixed.call("state", "a", "--visit", "1").err
    assert "milepost: --tag takes key=value, not 'x' (" in mixed.call("runs", "--tag", "x").err
    assert "; the edge a -> b" in mixed.call("run", "bad_graph.py:graph").err


@for_each("told, expected", [
        ("wait for it with on_locked='wait', or fence it off with takeover=True",
         "wait for it with --on-locked wait, or fence it off with --takeover"),
        ("resume with a larger max_iterations or None", "resume with a larger --max-iterations"),
        ("if it was renamed, pass rename={'b': new name}; else resume_from a node before it",
         "if it was renamed, --rename b=NEW; else resume --from a node before it"),
        ("choose another run_id, resume() the run as it is, or pass compare_inputs=False",
         "choose another run id, or resume the run as it is"),
        ("use resume or resume_from", "use resume or resume --from NODE"),
        ("see history()", "see milepost history"),
    ])  # fmt: skip
def test_advice_of_the_library_is_given_in_options(told: str, expected: str) -> None:
    assert expected == in_options(told)


def test_an_empty_file_is_not_made_a_store_by_being_looked_at(mixed: Shop) -> None:
    mixed.call("runs", "--store", "sqlite:///empty.db")
    assert 0 == (mixed.folder / "empty.db").stat().st_size


def test_a_failure_that_is_recorded_is_told_without_its_traceback(shop: Shop) -> None:
    arguments = ("run", "shop:graph", "-i", "id=b", "-i", "fails=true", "--run-id", "b")
    assert 1 == shop.call(*arguments).code
    answer = shop.call(*arguments, "--if-exists", "return")
    assert (1, 1, False) == (answer.code, answer.err.count("\n"), "Traceback" in answer.err)
    assert "card refused" in answer.err
    assert "in charge" in shop.call(*arguments, "--if-exists", "return", "--debug").err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_behind_the_output_stops_no_run_and_shows_no_traceback(shop: Shop) -> None:
    arguments = ("run", "shop:graph", "-i", "id=b", "--run-id", "b")
    with Path("/dev/full").open("w", encoding="utf-8") as full, shop.spawn(*arguments, stdout=full) as process:
        _, err = process.communicate(timeout=30)
    assert (1, 1) == (process.returncode, err.count("\n"))
    assert "finished" == shop.call("show", "b", "--json").json["run"]["status"]


def test_an_error_in_the_log_is_one_line() -> None:
    error = OSError("no space\nleft")
    record = logging.LogRecord("milepost", logging.ERROR, "", 1, "hook %r failed", ("h",), (OSError, error, None))
    assert "ERROR: hook 'h' failed: OSError: no space\\nleft (--debug shows where)" == OneLine().format(record)


def test_an_error_with_json_is_a_document_too(mixed: Shop) -> None:
    answer = mixed.call("show", "nobody", "--json")
    error = answer.json["error"]
    assert ("RunNotFoundError", 3, "nobody") == (error["type"], error["exit_code"], error["run_id"])
    assert f"milepost: {error['message']}\n" == answer.err
    assert "UsageError" in mixed.call("run", "shop", "--json").json["error"]["type"]


def test_debug_shows_the_traceback(mixed: Shop) -> None:
    assert "Traceback" in mixed.call("show", "nobody", "--debug").err
    assert "SyntaxError" in mixed.call("run", "broken.py:graph", "--debug").err
    answer = mixed.call("--debug", "run", "shop:graph", "-i", "id=x", "-i", "fails=true")
    assert "Traceback" in answer.err
    assert "in charge" in answer.err


def test_another_database_gets_no_tables_by_being_looked_at(mixed: Shop) -> None:
    mixed.call("runs", "--store", "sqlite:///other.db")
    with closing(sqlite3.connect("other.db")) as connection:
        assert [("songs",)] == connection.execute("SELECT name FROM sqlite_master").fetchall()


def test_exit_codes_of_a_real_process(shop: Shop) -> None:
    assert 1 == shop.call_process("run", "shop:graph", "-i", "id=b", "-i", "fails=true").code
    assert 3 == shop.call_process("show", "nobody").code


def test_a_run_that_waits_has_exit_code_4(shop: Shop) -> None:
    url = ("--store", "sqlite:///s.db")
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "w"), Release("waiting", waiting_for=(Wait("w#1", "approval"),), signals=0))
    assert 4 == shop.call("resume", "w", "shop:graph", *url).code
    assert 4 == shop.call("resume", "w", "shop:graph", "--plan", *url).code


def test_a_run_that_another_owner_executes_has_exit_code_5(shop: Shop) -> None:
    url = ("--store", "sqlite:///s.db")
    with SQLiteStore("s.db") as store:
        make_run(store, "live")
        answer = shop.call("resume", "live", "shop:graph", *url)
        assert 5 == answer.code
        assert "--on-locked wait" in answer.err
        assert "--takeover" in answer.err
        planned = shop.call("resume", "live", "shop:graph", "--plan", *url)
        assert (5, True) == (planned.code, "--on-locked wait" in planned.out)
        assert 5 == shop.call("delete", "live", "--yes", *url).code
        assert 0 == shop.call("resume", "live", "shop:graph", "--takeover", *url).code


def test_a_locked_run_can_be_waited_for(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        token = make_run(store, "live")
        arguments = ("resume", "live", "shop:graph", "--on-locked", "wait", "--json", "--store", "sqlite:///s.db")
        with shop.spawn(*arguments) as process:
            store.release(token, Release("interrupted"))
            out, _ = process.communicate(timeout=30)
    assert (0, "Result") == (process.returncode, json.loads(out.splitlines()[-1])["event"])


def test_a_cancelled_run_goes_on_only_if_it_is_reopened(shop: Shop) -> None:
    url = ("--store", "sqlite:///s.db")
    with SQLiteStore("s.db") as store:
        store.release(make_run(store, "c"), Release("cancelled", "no money"))
    answer = shop.call("resume", "c", "shop:graph", *url)
    assert 1 == answer.code
    assert "no money" in answer.err
    assert "--reopen" in answer.err
    assert 0 == shop.call("resume", "c", "shop:graph", "--reopen", *url).code


def test_a_killed_run_is_shown_as_dead_with_what_to_do(shop: Shop) -> None:
    arguments = ("run", "shop:graph", "-i", "id=a", "-i", "holds=true", "--run-id", "a", "--json")
    with shop.spawn(*arguments) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if json.loads(line)["event"] == "Emitted")
        process.kill()
    shown = shop.call("show", "a", "--json").json
    assert ("dead", "charge") == (shown["run"]["status"], shown["next_node"])
    assert shown["why"].startswith(f"process {process.pid} on this machine stopped without a word")
    assert "milepost resume a [TARGET] goes on at 'charge'" in shown["why"]
    plan = shop.call("resume", "a", "shop:graph", "--plan", "--json").json
    assert ("continue", "charge") == (plan["verdict"], plan["next_node"])


def test_help_documents_the_exit_codes(shop: Shop) -> None:
    text = shop.call("--help").out
    for code, meaning in ((0, "done"), (1, "failed"), (2, "usage"), (3, "not found"), (4, "waiting"), (5, "locked")):
        assert f"  {code}    {meaning}" in text
    assert 2 == shop.call().code
    assert "milepost resume RUN" in shop.call("--help").out


def test_control_c_leaves_the_run_interrupted_with_exit_code_130(shop: Shop) -> None:
    arguments = ("run", "shop:graph", "-i", "id=a", "-i", "holds=true", "--run-id", "a", "--json")
    # A shell ignores SIGINT for what it runs in the background, and every child inherits that unless it is handled.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = shop.spawn(*arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        next(line for line in process.stdout if json.loads(line)["event"] == "Emitted")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (130, False) == (process.returncode, "Traceback" in err)
    assert "milepost: interrupted: milepost resume a [TARGET] goes on\n" in err
    shown = shop.call("show", "a", "--json").json
    assert ("interrupted", "charge") == (shown["run"]["status"], shown["next_node"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["history", "a"],
        *(pytest.param(words, marks=wide) for words in (["export", "a"], ["run", "shop:graph", "-i", "id=b"])),
    ],
)
def test_a_reader_who_goes_away_is_no_error(mixed: Shop, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with mixed.spawn(*arguments, stdout=writer) as process:
            _, err = process.communicate(timeout=30)
    finally:
        os.close(writer)
    assert (141, "") == (process.returncode, err)


def test_a_run_goes_on_when_its_reader_goes_away(shop: Shop) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with shop.spawn("run", "shop:graph", "-i", "id=b", "--run-id", "b", stdout=writer) as process:
        os.close(writer)
        process.communicate(timeout=30)
    assert "finished" == shop.call("show", "b", "--json").json["run"]["status"]


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        (">&-", ["run", "shop:graph", "-i", "id=b", "--run-id", "b"], 0),
        ("<&- >&- 2>&-", ["worker", "--app", "shop:graph", "--until-idle"], 0),
        ("<&-", ["start", "shop:graph", "-", "--run-id", "c"], 2),
    ],
)
def test_a_standard_stream_that_is_closed_leads_nowhere(shop: Shop, closed: str, words: list[str], code: int) -> None:
    shop.call("start", "shop:graph", "-i", "id=a", "--run-id", "b" if words[0] == "worker" else "a")
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-W", "error", "-m", "milepost", *words]
    done = subprocess.run(command, cwd=shop.folder, capture_output=True, text=True, check=False, timeout=30)
    assert code == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    if code == 0:
        assert "finished" == shop.call("show", "b", "--json").json["run"]["status"]


def in_terminal(
    shop: Shop, *arguments: str, columns: int = 120, no_color: str = "", typed: str = "", code: int = 0
) -> str:
    """What a process prints to a terminal where somebody has typed something."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    environment |= {"NO_COLOR": no_color}
    with shop.spawn(*arguments, stdout=slave, stderr=slave, stdin=slave, env=environment) as process:
        os.close(slave)
        os.write(master, typed.encode())
        told = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # how Linux tells that the other side was closed
                break
            if not part:
                break
            told += part
        assert code == process.wait(timeout=30)
    os.close(master)
    return told.decode()


def test_prune_shows_what_would_go_and_asks(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    shop.call("run", "shop:graph", "-i", "id=b", "--run-id", "b")
    prune = ("prune", "--older-than", "0s")
    told = in_terminal(shop, *prune, typed="n\n", code=1)
    for part in ("would delete a\r\n", "would delete b\r\n", "delete 2 runs for good? [y/N]", "nothing was deleted"):
        assert part in told
    assert (0, 0) == (shop.call("show", "a").code, shop.call("show", "b").code)
    assert "deleted 2 runs" in in_terminal(shop, *prune, "--keep-last", "1", typed="y\n")
    assert (3, 3) == (shop.call("show", "a").code, shop.call("show", "b").code)
    assert "there is nothing to prune" in in_terminal(shop, *prune)


def test_a_terminal_gets_colours_and_a_spinner(shop: Shop) -> None:
    told = in_terminal(shop, "run", "shop:graph", "-i", "id=a", "--run-id", "a")
    assert "\x1b[32m  done    charge#2" in told
    assert "a node prints this" in told
    assert "\x1b[?25h" in told  # the cursor is back
    assert "\x1b[" in in_terminal(shop, "show", "a")
    json.loads(in_terminal(shop, "show", "a", "--json"))


def test_no_color_is_respected(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    assert "\x1b[33m" in in_terminal(shop, "diff", "a", "0", "charge")
    assert "\x1b[" not in in_terminal(shop, "diff", "a", "0", "charge", no_color="1")
    assert "\x1b[32m" not in in_terminal(shop, "runs", no_color="1")


@pytest.mark.parametrize("columns", [60, *(pytest.param(number, marks=wide) for number in (80, 120))])
def test_a_list_of_runs_in_a_narrow_terminal_keeps_ids_and_times_and_cuts_text(shop: Shop, columns: int) -> None:
    run_id = "01a21f84-8238-7431-8baa-40e68ffaf213"
    shop.call("run", "shop:graph", "-i", "id=a", "-i", "fails=true", "--run-id", run_id)
    told = re.sub(r"\x1b\[[0-9;?]*[a-z]", "", in_terminal(shop, "runs", columns=columns)).splitlines()
    header, row = (line.rstrip() for line in told if line.strip())
    assert re.match(rf"{run_id} .*\bfailed\b.* \d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d", row)
    assert columns >= max(len(header), len(row)) or columns == 60
    assert ("…" in row, "why" in header) == (columns == 120, columns == 120)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("package", ["click", *(pytest.param(name, marks=wide) for name in ("rich", "jsonpatch"))])
def test_without_the_extra_one_line_says_what_to_install(shop: Shop, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from milepost.cli import main; sys.exit(main(['runs']))"
    done = run_python(code)
    assert (2, "") == (done.returncode, done.stdout)
    assert f"milepost: the command line needs {package}: pip install 'milepost[cli]'\n" == done.stderr


def test_json_and_help_do_not_import_rich(shop: Shop) -> None:
    code = (
        "import sys; from milepost.cli import main; main(['runs', '--json']); main(['--help']); "
        "sys.exit('rich' in sys.modules or 'jsonpatch' in sys.modules)"
    )
    assert 0 == run_python(code).returncode


def test_output_that_has_no_unicode_is_no_error(shop: Shop) -> None:
    with shop.spawn(
        "run", "shop:graph", "-i", "id=Żółw", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    ) as process:  # fmt: skip
        out, err = process.communicate(timeout=30)
    assert (0, "") == (process.returncode, err)
    assert "\\u017b" in out


@pytest.mark.parametrize("encoding", ["ascii", *(pytest.param(name, marks=wide) for name in ("latin-1", "utf-8"))])
def test_json_stays_json_whatever_the_encoding_of_the_output(shop: Shop, encoding: str) -> None:
    def told(*arguments: str) -> list[object]:
        with shop.spawn(*arguments, env={**os.environ, "PYTHONIOENCODING": encoding}, errors="replace") as process:
            out, _ = process.communicate(timeout=30)
        return [json.loads(line) for line in out.splitlines()] if "--json" in arguments else [json.loads(out)]

    assert told("run", "shop:graph", "-i", "id=Öł", "--run-id", "Öł", "--json")
    assert "Öł" == told("state", "Öł")[0]["id"]
    assert "Öł" == told("runs", "--json")[0]["runs"][0]["run_id"]
    assert "'ö'" in told("show", "ö", "--json")[0]["error"]["message"]


def test_the_list_of_commands_has_the_first_sentence_of_each_commands_own_help() -> None:
    said = {name: command.load().get_short_help_str(200) for name, command in cli.commands.items()}
    assert said == {name: command.short_help for name, command in cli.commands.items()}


def loaded_by(*arguments: str) -> set[str]:
    listed = (
        f"import sys; before = set(sys.modules); from milepost.cli import main; main({[*arguments]!r}); "
        "print(sorted(set(sys.modules) - before))"
    )
    told = subprocess.run([sys.executable, "-c", listed], capture_output=True, check=True, text=True).stdout
    return set(ast.literal_eval(told.splitlines()[-1]))


def test_the_help_of_the_command_line_imports_no_store_and_no_engine() -> None:
    loaded = loaded_by("--help")
    assert "milepost.cli.app" in loaded
    unwanted = {"asyncio", "jsonpatch", "msgspec", "pathlib", "rich", "sqlite3", "milepost.store", "milepost.engine"}
    assert set() == loaded & unwanted


def test_a_list_of_runs_imports_its_store_and_nothing_that_runs_flows(shop: Shop) -> None:
    assert 0 == shop.call("run", "shop:graph", "-i", "id=a").code
    loaded = loaded_by("runs")
    assert "milepost.stores.sqlite.store" in loaded
    unwanted = {
        "codec",
        "drivers",
        "engine.engine",
        "executor.flow",
        "executor.history",
        "model.events",
        "options",
        "verbs",
    }
    assert set() == loaded & ({f"milepost.{name}" for name in unwanted} | {"asyncio", "rich"})


def test_no_line_of_a_help_text_is_cut_at_80_columns(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ([], *([name] for name in cli.commands), ["db", "status"], ["db", "migrate"], ["db", "sql"]):
        told = shop.call(*words, "--help").out.splitlines()
        assert [] == [line for line in told if len(line) > 80 or (line.endswith("...") and "Usage:" not in line)]
