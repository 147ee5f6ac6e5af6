#!/usr/bin/env python3
"""A package for tests: it does to each kind of question what its settings say, and behaves where they say nothing."""

import json
import os
import sys
import time

NAME = "odd"


def say(document):
    print(json.dumps(document), flush=True)


def misbehave(how, question):
    if how == "crash":
        os._exit(3)
    if how == "hang":
        time.sleep(3600)
    if how == "flood":
        sys.stdout.write("x" * (10 << 20))
        sys.stdout.flush()
    if how == "large":
        say({"jsonrpc": "2.0", "id": question["id"], "result": {"output": "x" * (1536 << 10)}})
    if how == "nonsense":
        say({"jsonrpc": "2.0", "id": question["id"], "result": {"answer": "perhaps", "output": 7, "faults": 7}})
    if how == "stranger":
        say({"jsonrpc": "2.0", "id": question["id"] + 1000, "result": {}})
    if how == "memory":
        held = []
        while True:
            held.append(bytearray(b"x" * (16 << 20)))


def judged(how, work):
    if how == "refuse":
        return {"answer": "refuse", "code": "odd_gate", "message": "the odd gate is shut"}
    if how == "park":
        wait = {"mode": "any", "predicates": [{"type": "odd.opened", "work_id": work}]}
        return {"answer": "park", "wait": wait, "output": {"parked": True}}
    return {"answer": "let_through"}


def answer(method, params, how):
    settings = params.get("settings", {})
    if method == "initialize":
        # What it says of itself may be a lie, which `lie` beside it holds.
        said = {
            "protocol_version": 1,
            "name": NAME,
            "version": "1.0.0",
            "operations": ["odd.do"],
            "actions": ["odd.look", "odd.reset", "odd.wipe"],
            "operation_gate": True,
            "start_gate": True,
            "validate": True,
        }
        if os.path.exists("lie.json"):
            with open("lie.json") as lie:
                said.update(json.load(lie))
        return said
    if method == "validate":
        if how == "refuse":
            return {"faults": [{"pointer": "/validate", "message": "say something else"}]}
        return {"faults": []}
    if method in ("operation.gate", "gate.start"):
        return judged(how, params.get("work_id") or params["authority"]["work_id"])
    if method == "operation.invoke":
        return {"output": {"settings": settings, "input": params["input"]}}
    if method == "action.invoke":
        told = {field: params[field] for field in ("name", "input", "actor", "scope_id", "request_id")}
        return {"output": {**told, "settings": settings}}
    return {}


KINDS = {
    "validate": "validate",
    "operation.invoke": "invoke",
    "operation.gate": "gate",
    "gate.start": "start",
    "action.invoke": "act",
}


def main():
    for line in sys.stdin:
        question = json.loads(line)
        if "id" not in question:
            continue
        method, params = question["method"], question["params"]
        how = params.get("settings", {}).get(KINDS.get(method, ""), "behave")
        once = params.get("settings", {}).get("once")
        if once and os.path.exists(once):
            how = "behave"
        elif once and how not in ("behave", "park", "refuse"):
            open(once, "w").close()
        misbehave(how, question)
        say({"jsonrpc": "2.0", "id": question["id"], "result": answer(method, params, how)})
        if method == "shutdown":
            return


main()
