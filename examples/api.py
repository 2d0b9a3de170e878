"""An API over TLS for trying out injected secrets: it answers with the credentials that it was sent.

python3 examples/api.py PORT

It makes a certificate for host.sandbox.internal with openssl, in api.pem.
"""

import http.server
import ssl
import subprocess
import sys


class Api(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"you sent {self.headers['authorization']}\n".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *words):
        pass


name = "host.sandbox.internal"
subprocess.run(
    ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
     "-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE",
     "-keyout", "api.key", "-out", "api.pem"],
    check=True, capture_output=True,
)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Api)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("api.pem", "api.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("ready", flush=True)
server.serve_forever()
