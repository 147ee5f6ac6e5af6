#!/usr/bin/env python3
"""The package `courier`: an executor that writes down what it is asked, and misbehaves as files in its yard say."""

import json
import os
import sys
import threading


def answer(question, result):
    print(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": result}), flush=True)


def behaviour(yard, kind):
    """What the yard says for this kind of question; one that says `once` is taken away by being read."""
    file = os.path.join(yard, kind)
    try:
        with open(file) as said:
            words = said.read().split()
    except FileNotFoundError:
        return None
    if "once" in words:
        os.remove(file)
    return words[0]


def misbehave(question, how):
    if how == "crash":
        os._exit(3)
    if how == "hang":
        threading.Event().wait()
    if how == "nonsense":
        return answer(question, {"surprise": True})
    if how == "refuse":
        data = {"code": "no_errands", "message": "nobody is sent today"}
        error = {"code": -32001, "message": "no", "data": data}
        print(json.dumps({"jsonrpc": "2.0", "id": question["id"], "error": error}), flush=True)
    if how == "relative":
        answer(question, {"executable": "true"})
    if how == "masked":
        answer(question, {"executable": "/bin/true", "env": {"OS_TOKEN_FILE": "/tmp/other"}})
    if how == "later":
        answer(question, {"end": "failed", "code": "come_again", "message": "not today", "retryable": True})
    if how == "lost":
        answer(question, {"end": "lost"})


def ask(question):
    params, kind = question["params"], question["method"].removeprefix("executor.")
    yard = params["config"]["yard"]
    with open(os.path.join(yard, "asked"), "a") as journal:
        journal.write(json.dumps({"kind": kind, **params}) + "\n")
    how = behaviour(yard, kind)
    if how is not None:
        return misbehave(question, how)
    if kind == "plan":
        script = params["config"].get("script", "true")
        ran = os.path.join(yard, "ran")
        args = ["-euc", f'echo "$OPEN_CONDUIT_EXECUTION_ID" >> {ran}; {script}']
        return answer(question, {"executable": "/bin/sh", "args": args, "env": {"COURIER": "here"}})
    answer(question, {"end": "succeeded"})


for line in sys.stdin:
    question = json.loads(line)
    if "id" not in question:
        continue
    if question["method"] == "initialize":
        executors = ["courier", "courier.silent", "courier.patient"]
        said = {"protocol_version": 1, "name": "courier", "version": "1.0.0", "operations": []}
        answer(question, {**said, "executors": executors})
    elif question["method"] == "shutdown":
        answer(question, {})
        break
    else:
        ask(question)
