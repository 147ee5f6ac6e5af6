#!/usr/bin/env python3
"""An example package with an executor: a binding names a Python script, and this program says how it is run.

It starts nothing itself. It is asked what to run, the host runs that, at most once, and it is asked what the ending means.
The protocol is described in docs/extension-protocol.md.
"""

import json
import sys

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h


def initialize(params):
    return {"protocol_version": 1, "name": "scripts", "version": "1.0.0", "operations": [], "executors": ["scripts"]}


def plan(params):
    """Names the program. Where its socket and its token are, the host tells the process by itself."""
    config = params["config"]
    return {
        "executable": sys.executable,
        "args": ["-c", config["script"], *config.get("args", [])],
        "env": {"PYTHONUNBUFFERED": "1"},
    }


def interpret(params):
    """Only a script that declared nothing gets here: what it declared stands."""
    terminal = params["terminal"]
    if terminal["result"] == "succeeded":
        return {"end": "succeeded"}
    if terminal["result"] == "timed_out":
        return {"end": "failed", "code": "too_slow", "message": "the script ran out of time", "retryable": True}
    if terminal.get("exit_code") == TRY_AGAIN:
        return {"end": "failed", "code": "try_again", "message": "the script asks for another try", "retryable": True}
    said = [output["tail"].strip() for output in params["outputs"] if output["name"] == "stderr"]
    last = said[0].splitlines()[-1] if said and said[0] else "the script failed and said nothing"
    return {"end": "failed", "code": "script_failed", "message": last[:500], "retryable": False}


METHODS = {
    "initialize": initialize,
    "executor.plan": plan,
    "executor.interpret": interpret,
    "shutdown": lambda params: {},
}


def main():
    for line in sys.stdin:
        question = json.loads(line)
        if "id" not in question:
            continue  # a cancellation: every question here is answered at once
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": METHODS[question["method"]](question["params"])}
        print(json.dumps(answer), flush=True)
        if question["method"] == "shutdown":
            return


main()
