#!/usr/bin/env python3
"""An example package: one operation, one Wait and a gate, with nothing but the standard library.

Questions come on standard input, one JSON document on a line; answers go to standard output in the same way. What is
written to standard error lands in the daemon's log. The protocol is described in docs/extension-protocol.md.
"""

import json
import sys

FORBIDDEN = "password"


class Refusal(Exception):
    """Nothing was done; the caller is told this code and this message."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def initialize(params):
    if 1 not in params["protocol_versions"]:
        raise Refusal("protocol_version", "this package speaks version 1")
    return {
        "protocol_version": 1,
        "name": "words",
        "version": "1.0.0",
        "operations": ["words.count", "words.expect"],
        "operation_gate": True,
    }


def invoke(params):
    given = params["input"]
    if params["operation"] == "words.count":
        words = given["text"].split()
        if not words:
            raise Refusal("no_words", "the text has no words")
        return {"output": {"words": len(words), "longest": max(words, key=len)}}
    wait = {"mode": "any", "predicates": [{"type": "words.arrived", "data": {"/word": given["word"]}}]}
    return {"wait": wait, "output": {"expected": given["word"]}}


def gate(params):
    """Judges a call of another extension's operation by its input."""
    if FORBIDDEN in json.dumps(params["input"]).lower():
        return {"answer": "refuse", "code": "forbidden_word", "message": f"an input names a {FORBIDDEN}"}
    return {"answer": "let_through"}


METHODS = {
    "initialize": initialize,
    "operation.invoke": invoke,
    "operation.gate": gate,
    "shutdown": lambda params: {},
}


def main():
    for line in sys.stdin:
        question = json.loads(line)
        if "id" not in question:
            continue  # a cancellation: every question here is answered at once
        answer = {"jsonrpc": "2.0", "id": question["id"]}
        try:
            answer["result"] = METHODS[question["method"]](question["params"])
        except Refusal as refusal:
            data = {"code": refusal.code, "message": str(refusal)}
            answer["error"] = {"code": -32001, "message": str(refusal), "data": data}
        print(json.dumps(answer), flush=True)
        if question["method"] == "shutdown":
            return


main()
