#!/usr/bin/env python3
"""A whole Swift in one process: serve_swift.py PORT FOLDER.

The proxy serves $HB_IP:PORT; the account, container and object servers behind it listen on loopback at the
ports of their rings. FOLDER holds the rings and each server's configuration. Every request to the proxy is a
line in $HB_ACCESS, as serve.py writes it; the query, which may be a signature, is left out.
"""
import os
import sys
import time

import eventlet

eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402
from swift.common import utils  # noqa: E402
from swift.common.wsgi import loadapp  # noqa: E402

port, folder = int(sys.argv[1]), sys.argv[2]
os.environ["SWIFT_DIR"] = folder
utils.SWIFT_CONF_FILE = f"{folder}/swift.conf"
log = open(os.environ["HB_ACCESS"], "a", buffering=1)


def logged(application):
    def serve(environ, start_response):
        t = time.time()
        seen = ["500"]
        n = 0

        def start(status, headers, exc_info=None):
            seen[0] = status.split()[0]
            return start_response(status, headers, exc_info)
        try:
            for chunk in application(environ, start):
                n += len(chunk)
                yield chunk
        finally:
            agent = (environ.get("HTTP_USER_AGENT") or "-").split()[0]
            log.write(f"{time.time():.3f} {(time.time() - t) * 1000:.0f} {seen[0]} {environ.get('CONTENT_LENGTH') or 0} {n} "
                      f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} {agent} {environ.get('REMOTE_ADDR', '-')}\n")
    return serve


def serve(name: str, address: tuple, wrap=lambda a: a):
    with open(os.devnull, "w") as quiet:
        wsgi.server(eventlet.listen(address), wrap(loadapp(f"{folder}/{name}.conf")), log=quiet, debug=False)


threads = [eventlet.spawn(serve, name, ("127.0.0.1", port + n + 1)) for n, name in enumerate(("account", "container", "object"))]
threads.append(eventlet.spawn(serve, "proxy", (os.environ["HB_IP"], port), logged))
for thread in threads:
    thread.wait()  # one that ends ends them all
