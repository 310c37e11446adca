"""What the tests of the server share: starting `heed serve` on a free port, asking it, ending it."""
import http.client
import json
import os
import re
import signal
import subprocess

HEED = os.environ["HEED"]


class Serve:
    """with Serve("--token") as server: server.ask("/api/pattern", {...})"""

    def __init__(self, *arguments):
        self.process = subprocess.Popen([HEED, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        line = self.process.stdout.readline()
        match = re.search(r"http://([^/]+):(\d+)/(?:\?token=(\w+))?", line)
        if not match:
            raise RuntimeError(f"heed serve said {line!r} {self.process.stderr.read()!r}")
        self.host, self.port, self.token = match[1].strip("[]"), int(match[2]), match[3]
        self.address = f"http://{match[1]}:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()

    def stop(self):
        """Ends the server as Ctrl-C does; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode

    def request(self, method, path, body=None, headers=None, timeout=180):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def ask(self, path, body, expect=200):
        status, _, text = self.request("POST", path, json.dumps(body))
        if status != expect:
            raise AssertionError(f"{path}: {status} {text[:300]!r}")
        return json.loads(text)
