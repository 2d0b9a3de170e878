"""A server of three tools over the Model Context Protocol (stdin and stdout): the orders of a shop.

sandboxctl mcp --upstream 'shop=python3 examples/shop.py'
"""

import json
import sys

ORDERS = [{"id": n, "customer": ["ada", "bob"][n % 2], "price": 5 * n} for n in range(1, 9)]


def add_note(id, text):
    return {"noted": f"{id}: {text}"}


def cancel_order(id):
    return {"cancelled": id}


def list_orders(customer):
    return {"result": [order for order in ORDERS if order["customer"] == customer]}


def tool(call, hints, output=None, **properties):
    properties = {name: {"type": kind} for name, kind in properties.items()}
    described = {
        "name": call.__name__,
        "description": call.__name__.replace("_", " ").capitalize(),
        "annotations": hints,
        "inputSchema": {"type": "object", "properties": properties, "required": list(properties)},
    }
    return {**described, "outputSchema": output} if output else described


ORDER = {"type": "object", "properties": {name: {"type": kind} for name, kind in
         {"id": "integer", "customer": "string", "price": "integer"}.items()}}
LISTED = {"type": "object", "properties": {"result": {"type": "array", "items": ORDER}}}
CALLS = {call.__name__: call for call in (add_note, cancel_order, list_orders)}
TOOLS = [
    tool(add_note, {}, id="integer", text="string"),
    tool(cancel_order, {"destructiveHint": True}, id="integer"),
    tool(list_orders, {"readOnlyHint": True}, LISTED, customer="string"),
]


def answer(method, params):
    match method:
        case "initialize":
            about = {"name": "shop", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            value = CALLS[params["name"]](**params["arguments"])
            return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}
        case "ping":
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params", {}))
        error = {"code": -32601, "message": "method not found"}
        end = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **end}), flush=True)
