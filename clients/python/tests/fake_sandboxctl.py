#!/usr/bin/env python3
"""Stands in for `sandboxctl tools --stdio`: the line protocol for clients, over files in memory.

What it is asked by the names of files and scripts and by the environment, the tests need and the real one does not do.
"""

import base64
import json
import os
import signal
import sys

if "--version" in sys.argv:
    print("sandboxctl 0.0.9 (fake)")
    sys.exit(0)
MODE = os.environ.get("FAKE", "")
if MODE == "silent-death":
    sys.exit("error: no engine answers")
if MODE == "older":
    print("error: unexpected argument '--unrestricted' found", file=sys.stderr)
    sys.exit(2)

sandboxes: dict = {}
pending: dict = {}
most = 0


def say(line: dict) -> None:
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n")
    sys.stdout.buffer.flush()


def answer(id: int, data: object) -> None:
    say({"id": id, "type": "text", "data": data, "metadata": {"durationMs": 0}})


def refuse(id: int, kind: str, error: str) -> None:
    say({"id": id, "error": error, "metadata": {"kind": kind, "retryable": False}})


def document(status: str, result: object) -> dict:
    return {
        "schema": "sandboxctl.result/1",
        "id": "x",
        "status": status,
        "result": result,
        "logs": [],
        "logs_truncated": False,
        "files_touched": [],
        "files_touched_truncated": False,
        "error": None,
        "engine": "embedded",
        "limits": None,
        "usage": None,
    }


def name_of(path: "str | dict | None") -> "str | None":
    return path["b64"] if isinstance(path, dict) else path


def operate(files: dict, operation: dict) -> dict:
    path = name_of(operation["path"])
    match operation["operation"]:
        case "write":
            encoded = operation["encoding"] == "base64"
            content = operation["content"]
            files[path] = base64.b64decode(content) if encoded else content.encode()
            return {"success": True, "data": {"path": path, "bytes_written": len(files[path]), "created": True}}
        case "read" if path in files:
            encoded = operation["encoding"] == "base64"
            content = base64.b64encode(files[path]).decode() if encoded else files[path].decode()
            return {"success": True, "data": {"path": path, "content": content}}
        case "exists":
            return {"success": True, "data": {"path": path, "exists": path in files}}
    return {"success": False, "data": None, "error": {"kind": "not_found", "message": f"{path}: No such file"}}


def pump(id: int) -> None:
    transfer = pending[id]
    content = transfer["content"]
    while transfer["credit"] and transfer["at"] < len(content):
        transfer["credit"] -= 1
        say({"id": id, "chunk": base64.b64encode(content[transfer["at"] : transfer["at"] + 65536]).decode()})
        transfer["at"] += 65536
    if transfer["at"] >= len(content):
        del pending[id]
        answer(id, {"bytes": len(content)})


def call(id: int, tool: str, args: dict, stream: bool = False) -> None:
    global most
    name = args["containerId"]
    if tool != "sandbox_init" and name not in sandboxes:
        refuse(id, "invalid_request", f"Container '{name}' not registered")
        return
    files = sandboxes.get(name, {})
    path = name_of(args.get("path"))
    match tool:
        case "sandbox_init":
            received = {"args": args, "pid": os.getpid(), "env": sorted(os.environ)}
            sandboxes[name] = {"init": json.dumps(received).encode()}
            answer(id, {"containerId": name, "sandboxId": f"s-{name}", "dockerId": f"d-{name}"})
        case "sandbox_destroy":
            del sandboxes[name]
            answer(id, {"containerId": name, "removed": True})
        case "sandbox_operation":
            match args["operation"].get("path"):
                case "pending":
                    pending[id] = {}
                case "count":
                    answer(id, {"success": True, "data": {"path": "", "content": f"{len(pending)} {most}"}})
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case _:
                    answer(id, operate(files, args["operation"]))
        case "sandbox_execute":
            script = args["request"].get("script")
            if script == "slow":
                # Answered when 24 of them are there, or the last one.
                pending[id] = {"slow": True}
                slow = [each for each, value in pending.items() if value.get("slow")]
                most = max(most, len(slow))
                if len(slow) == 24 or args["request"]["args"]["last"]:
                    for each in slow:
                        del pending[each]
                        answer(each, document("ok", None))
            elif script == "wait":
                pending[id] = {"execution": True}
                if stream:
                    say({"id": id, "event": {"seq": 1, "event": "log", "level": "print", "text": "waiting"}})
            elif script == "talk":
                for seq in range(1, 101):
                    say({"id": id, "event": {"seq": seq, "event": "log", "level": "print", "text": "é" * 50}})
                answer(id, document("ok", None))
            else:
                answer(id, document("ok", args["request"]))
        case "sandbox_download" if path in files:
            pending[id] = {"content": files[path], "credit": 8, "at": 0}
            pump(id)
        case "sandbox_download":
            refuse(id, "not_found", f"{path}: No such file")
        case "sandbox_upload" if path == "refused":
            refuse(id, "not_allowed", "refused")
        case "sandbox_upload":
            pending[id] = {"pieces": [], "files": files, "path": path}


# At the end it answers what it has: what was not cancelled keeps it.
for text in sys.stdin.buffer:
    line = json.loads(text)
    if "hello" in line:
        say({"hello": {"protocol": 2 if MODE == "newer" else 1, "version": "0.0.9", "engine": "embedded"}})
        if MODE == "garbage":
            sys.stdout.buffer.write(b"no JSON\n")
            sys.stdout.buffer.flush()
    elif "cancel" in line:
        entry = pending.pop(line["cancel"], None)
        if entry is not None and entry.get("execution"):
            answer(line["cancel"], document("cancelled", None))
        elif entry is not None:
            refuse(line["cancel"], "cancelled", "cancelled")
    elif "more" in line:
        if line["more"] in pending:
            pending[line["more"]]["credit"] += line["chunks"]
            pump(line["more"])
    elif "chunk" in line:
        upload = pending.get(line["chunk"])
        if upload is None:
            pass
        elif "data" in line:
            upload["pieces"].append(base64.b64decode(line["data"]))
            say({"id": line["chunk"], "more": 1})
        else:
            del pending[line["chunk"]]
            upload["files"][upload["path"]] = b"".join(upload["pieces"])
            written = len(upload["files"][upload["path"]])
            answer(line["chunk"], {"path": upload["path"], "bytes_written": written, "created": True})
    else:
        call(line["id"], line["tool"], line["args"], line.get("stream", False))
if any("execution" in entry for entry in pending.values()):
    signal.pause()
