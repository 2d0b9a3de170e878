"""What programs with E2B's code interpreter do, at sandboxctl serve: scripts/e2b-suite --code-interpreter."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from e2b import TimeoutException
from e2b_code_interpreter import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox.create(timeout=900, envs={"GIVEN": "to all"}) as sandbox:
        yield sandbox


def test_names_are_kept_and_the_last_value_is_the_result(sandbox):
    sandbox.run_code("import os; x = 40")
    ran = sandbox.run_code("print('counted'); x + len(os.environ['GIVEN'][:2])")
    assert (ran.text, ran.logs.stdout, ran.error) == ("42", ["counted\n"], None)
    assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"


def test_figure_and_table_are_rich_results(sandbox):
    ran = sandbox.run_code("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
    assert base64.b64decode(ran.results[0].png).startswith(b"\x89PNG")
    table = sandbox.run_code("import pandas; pandas.DataFrame({'a': [1, 2]})").results[0]
    assert "<table" in table.html
    assert table.data == {"a": [1, 2]}


def test_many_results_all_come_to_a_slow_reader(sandbox):
    seen = 0

    def take(_):
        nonlocal seen
        # The first one is read when the cell has shown them all.
        while seen == 0 and not sandbox.files.exists("shown"):
            time.sleep(0.05)
        seen += 1

    code = "for i in range(5000): display('x' * 10_000)\nopen('shown', 'w').close()\n'last'"
    ran = sandbox.run_code(code, on_result=take)
    assert (seen, ran.text, ran.error) == (5001, "last", None)


def test_contexts_and_languages_are_apart(sandbox):
    context = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert sandbox.run_code("x", context=context).error.name == "NameError"
    assert sandbox.run_code("pwd", language="bash").logs.stdout == ["/home/user\n"]
    assert sandbox.run_code("await Promise.resolve(6 * 7)", language="js").text == "42"
    sandbox.remove_code_context(context)


def test_what_a_program_prints_is_whole(sandbox):
    context = sandbox.create_code_context(language="bash")
    # The bytes of a character come apart.
    ran = sandbox.run_code(r"printf 'x\xc3'; sleep 1; printf '\xa9\n'", context=context)
    assert ("".join(ran.logs.stdout), ran.error) == ("x\u00e9\n", None)
    ran = sandbox.run_code(r"printf '\xc3'", context=context)
    assert ran.logs.stdout == ["\ufffd"]
    ran = sandbox.run_code("echo last; exit 3", context=context)
    assert (ran.logs.stdout, ran.error.name) == (["last\n"], "ContextRestarting")


def test_end_of_a_shell_is_seen_though_what_it_has_started_lives(sandbox):
    context = sandbox.create_code_context(language="bash")
    assert sandbox.run_code("sleep 10000 &", context=context).error is None
    assert sandbox.run_code("exit 3", context=context).error.name == "ContextRestarting"
    assert sandbox.run_code("echo again", context=context).logs.stdout == ["again\n"]


def test_error_of_javascript_ends_its_cell(sandbox):
    context = sandbox.create_code_context(language="js")
    for code in ("throw new TypeError('bad')", "await Promise.reject(new TypeError('bad'))"):
        error = sandbox.run_code(code, context=context).error
        assert (error.name, error.value) == ("TypeError", "bad")
    unreadable = "throw { get message() { throw 5 } }"
    odd = ("throw Object.create(null)", "throw { name: {}, stack: Symbol() }", "throw 'bad'", "throw 0", unreadable)
    for code in odd:
        assert sandbox.run_code(code, context=context).error is not None
    for code in ("throw null", "await Promise.reject(null)", "throw undefined", "await Promise.reject()"):
        error = sandbox.run_code(code, context=context).error
        assert (error.name, error.value) == ("Error", "null" if "null" in code else "undefined")
    assert sandbox.run_code("1", context=context).text == "1"


def test_javascript_that_ends_its_process_is_seen(sandbox):
    context = sandbox.create_code_context(language="js")
    assert sandbox.run_code("process.exit(3)", context=context).error.name == "ContextRestarting"
    assert sandbox.run_code("1", context=context).text == "1"


def test_javascript_that_prints_much_has_printed_it_at_its_end(sandbox):
    context = sandbox.create_code_context(language="js")
    ran = sandbox.run_code("process.stdout.write('x'.repeat(1_000_000)); 1", context=context)
    assert ("".join(ran.logs.stdout), ran.text) == ("x" * 1_000_000, "1")
    assert sandbox.run_code("console.log('next')", context=context).logs.stdout == ["next\n"]


def test_import_of_typescript_is_for_later_cells_too(sandbox):
    context = sandbox.create_code_context(language="ts")
    assert sandbox.run_code("import { basename as last } from 'path'", context=context).error is None
    assert sandbox.run_code("const it: string = last('/a/b'); it", context=context).text == "b"
    assert sandbox.run_code("import type { Stats } from 'fs'\n1", context=context).text == "1"


def test_code_whose_caller_has_gone_is_interrupted(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(300)", timeout=1)
    assert sandbox.run_code("1 + 1", timeout=100).text == "2"


def test_code_that_waits_for_other_code_never_runs_without_its_caller(sandbox):
    begun = Event()
    with ThreadPoolExecutor() as pool:
        code = "print('begun')\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n'ended'"
        first = pool.submit(sandbox.run_code, code, on_stdout=lambda _: begun.set())
        try:
            assert begun.wait(100)
            with pytest.raises(TimeoutException):
                sandbox.run_code("open('late', 'w').close()", timeout=1)
        finally:
            sandbox.files.write("go", "")
        assert first.result().text == "ended"
    assert sandbox.run_code("import os; os.path.exists('late')").text == "False"


def test_a_restart_ends_code_that_waits_for_other_code(sandbox):
    # Nothing shows that the second one waits: on a busy machine it may come after the restart, and run.
    for seconds in (2, 20):
        context, begun = sandbox.create_code_context(), Event()
        with ThreadPoolExecutor() as pool:
            code = "print('begun'); import time; time.sleep(100)"
            first = pool.submit(sandbox.run_code, code, context=context, on_stdout=lambda _: begun.set())
            assert begun.wait(100)
            second = pool.submit(sandbox.run_code, "'ran'", context=context)
            time.sleep(seconds)
            sandbox.restart_code_context(context)
            assert first.result().error.name == "ContextRestarting"
            waited = second.result()
        if waited.error:
            break
    assert waited.error, waited
    assert waited.error.name == "ContextRestarting"
    assert sandbox.run_code("1 + 1", context=context).text == "2"
