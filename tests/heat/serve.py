#!/usr/bin/env python3
"""Serve one OpenStack WSGI application on $HB_IP: serve.py APP PORT CONFIG.

APP is keystone, heat-api, heat-api-cfn or zaqar, or one of tests/cloud.  Most WSGI entry
points parse sys.argv themselves, so argv is rewritten before they are imported; that
and variables of the environment point them at a configuration file outside /etc.
Every request is a line in $HB_ACCESS: end time, server ms, status, bytes in
and out (bodies), method, path and query, first word of the user agent, address
of the client.
"""
import importlib
import os
import sys
import time

app, port, config = sys.argv[1:4]
# APP → its module, and whether it gets its configuration by arguments
MODULES = {"keystone": ("keystone.wsgi.api", False), "heat-api": ("heat.wsgi.api", True), "heat-api-cfn": ("heat.wsgi.cfn", True),
           "glance": ("glance.wsgi.api", False), "placement": ("placement.wsgi.api", False), "nova-api": ("nova.wsgi.osapi_compute", False),
           "neutron": ("neutron.wsgi.api", True), "cinder-api": ("cinder.wsgi.api", True),
           "magnum-api": ("magnum.wsgi.api", True), "zaqar": ("zaqar.transport.wsgi.app", False)}
module, by_arguments = MODULES[app]
os.environ[f"OS_{app.split('-')[0].upper()}_CONFIG_DIR"] = os.path.dirname(config)
sys.argv = [app, "--config-file", config] if by_arguments else [app]

import waitress  # noqa: E402

application = importlib.import_module(module).application
log = open(os.environ["HB_ACCESS"], "a", buffering=1)


def logged(environ, start_response):
    t = time.time()
    seen = ["500"]
    n = 0

    def start(status, headers, exc_info=None):
        seen[0] = status.split()[0]
        return start_response(status, headers, exc_info)
    try:
        body = application(environ, start)
        chunks = list(body)
        n = sum(map(len, chunks))
        if hasattr(body, "close"):
            body.close()
        return chunks
    finally:
        query = environ.get("QUERY_STRING")
        agent = (environ.get("HTTP_USER_AGENT") or "-").split()[0]
        log.write(f"{time.time():.3f} {(time.time() - t) * 1000:.0f} {seen[0]} {environ.get('CONTENT_LENGTH') or 0} {n} "
                  f"{environ['REQUEST_METHOD']} {environ.get('SCRIPT_NAME', '')}{environ['PATH_INFO']}{'?' + query if query else ''} "
                  f"{agent} {environ.get('REMOTE_ADDR', '-')}\n")


# connection_limit: at the default of 100, kept-alive connections of heat-engine
# fill it and every client then stalls for 15 to 45 s until the next cleanup
# keystone 30 with several threads now and then answers 403 to a trust that heat may well create or delete; one thread
# is no slower, as its requests are short and wait for nobody
threads = 1 if app == "keystone" else int(os.environ.get("HB_THREADS", "8"))
waitress.serve(logged, host=os.environ["HB_IP"], port=int(port), threads=threads,
               connection_limit=2000, asyncore_use_poll=True, channel_timeout=60,
               cleanup_interval=10, ident=None, _quiet=True)
