"""A mirror with faults, for test_data_fetch.sh: mirror.py FILES CERTIFICATE LOG

Serves the folder FILES over https and over http, both on free ports of 127.0.0.1, which it prints
when they listen. The first word of a path is the fault: GET /403/NAME. Each GET is a line of LOG:
its path, and the Range that it asks for, if any."""
import http.server
import os
import ssl
import sys
import threading
import time

FILES, CERTIFICATE, LOG = sys.argv[1:]
LOGIN = b"<!DOCTYPE html>\n<html><title>Caf\xc3\xa9 Wi-Fi: \x1b[31mplease log in</title>\n" * 20
seen = {}
lock = threading.Lock()


def times(path):
    """How often this path was asked for before."""
    with lock:
        seen[path] = seen.get(path, -1) + 1
        return seen[path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def error(self, code, **headers):
        self.answer(code, Content_Length=5, **headers)
        self.wfile.write(b"sorry")

    def redirect(self, url):
        self.answer(302, Location=url, Content_Length=0)

    def send(self, data, pause=0.0, piece=65536):
        for at in range(0, len(data), piece):
            self.wfile.write(data[at:at + piece])
            time.sleep(pause)

    def hang_up(self):
        self.wfile.flush()
        self.close_connection = True

    def do_GET(self):
        wanted = self.headers.get("Range", "")
        with lock, open(LOG, "a", encoding="ascii") as log:
            log.write(f"{self.path} {wanted}\n")
        fault, name = self.path[1:].split("/", 1)
        with open(os.path.join(FILES, os.path.basename(name)), "rb") as file:
            data = file.read()
        try:
            self.serve(fault, name, data, wanted)
        except OSError:
            self.close_connection = True  # the client has left

    def serve(self, fault, name, data, wanted):
        whole, first = len(data), 0
        if fault == "403":
            return self.error(403)
        if fault == "busy" and times(self.path) == 0:
            return self.error(503, Retry_After=1)
        if fault == "loop":
            return self.redirect(self.path)
        if fault == "plain":
            return self.redirect(f"http://127.0.0.1:{plain.server_port}/ok/{name}")
        if fault == "moved":
            return self.redirect(f"/ok/{name}")
        if fault == "login":
            self.answer(200, Content_Type="text/html", Content_Length=len(LOGIN))
            return self.send(LOGIN)
        if fault == "wrong":
            data = data[:whole // 2] + bytes([data[whole // 2] ^ 1]) + data[whole // 2 + 1:]
        if fault == "long":
            data += b"more"
        if fault == "416" and wanted:
            return self.error(416, Content_Range=f"bytes */{whole}")
        if fault == "badrange" and wanted:
            self.answer(206, Content_Range=f"bytes 0-{whole - 1}/{whole}", Content_Length=whole)
            return self.send(data)
        if wanted and fault != "norange":
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.answer(206, Content_Range=f"bytes {first}-{whole - 1}/{whole}",
                        Content_Length=whole - first)
        else:
            self.answer(200, Content_Type="application/x-gzip", Content_Length=len(data))
        data = data[first:]
        if fault == "cut" and times(self.path) < 2 or fault == "truncated":
            self.send(data[:len(data) // 2])
            return self.hang_up()
        if fault == "stalled":
            self.send(data[:len(data) // 2])
            time.sleep(30)
            return self.hang_up()
        if fault == "held":  # the large file takes minutes: the client leaves before its end
            self.send(data[:600000])
            return self.send(data[600000:], pause=0.05, piece=1000)
        self.send(data, pause=0.003 if fault == "slow" else 0.0)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


plain = Server(("127.0.0.1", 0), Handler)
secure = Server(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE)
secure.socket = context.wrap_socket(secure.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print(secure.server_port, plain.server_port, flush=True)
secure.serve_forever()
