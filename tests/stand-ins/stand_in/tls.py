"""TLS of servers and clients, and a request to the API."""
from __future__ import annotations

import ctypes
import http.client
import json
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from stand_in import Refused, files


class Context(ssl.SSLContext):
    """One that may have more attributes."""


def every_ca_counts(context: ssl.SSLContext):
    """As Go verifies: of several CAs with one name, the one that signed. OpenSSL takes the first of that name, and has no way
    to say otherwise from Python; Magnum's CAs have one name, and its certificates no authority key id."""
    trusted = context.get_ca_certs(binary_form=True)
    if len(trusted) < 2:
        return
    lib = ctypes.CDLL("libssl.so.3")
    pointer = ctypes.c_void_p
    for name, result, arguments in (
            ("d2i_X509", pointer, (pointer, pointer, ctypes.c_long)), ("X509_get0_pubkey", pointer, (pointer,)),
            ("X509_verify", ctypes.c_int, (pointer, pointer)), ("X509_STORE_CTX_get0_cert", pointer, (pointer,)),
            ("OPENSSL_sk_new_null", pointer, ()), ("OPENSSL_sk_push", ctypes.c_int, (pointer, pointer)),
            ("X509_STORE_CTX_set0_trusted_stack", None, (pointer, pointer)), ("X509_verify_cert", ctypes.c_int, (pointer,)),
            ("ERR_clear_error", None, ())):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    certificates = []
    for der in trusted:
        start = pointer(ctypes.cast(ctypes.create_string_buffer(der, len(der)), pointer).value)
        certificates.append(lib.d2i_X509(None, ctypes.byref(start), len(der)))

    def verify(store_context, _):
        leaf, stack = lib.X509_STORE_CTX_get0_cert(store_context), lib.OPENSSL_sk_new_null()
        for one in certificates:
            if lib.X509_verify(leaf, lib.X509_get0_pubkey(one)) == 1:
                lib.OPENSSL_sk_push(stack, one)
        lib.ERR_clear_error()
        lib.X509_STORE_CTX_set0_trusted_stack(store_context, stack)
        return lib.X509_verify_cert(store_context)
    context.callback = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer)(verify)  # lives as long as the context
    whole = ctypes.cast(id(context) + object.__basicsize__, ctypes.POINTER(pointer))[0]  # CPython keeps OpenSSL's own there
    lib.SSL_CTX_set_cert_verify_callback(pointer(whole), context.callback, None)


def client_context(ca: str, certificate: str, key: str, insecure: bool = False) -> ssl.SSLContext:
    """Each a path or PEM text."""
    context = Context(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        context.load_verify_locations(**({"cadata": ca} if "-----BEGIN" in ca else {"cafile": ca}))
    else:
        context.load_default_certs()
    every_ca_counts(context)
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, value in (("certificate", certificate), ("key", key)):
                if "-----BEGIN" in value:
                    path = Path(folder) / name
                    path.touch(mode=0o600)
                    path.write_text(value)
                    value = str(path)
                paths.append(value)
            context.load_cert_chain(*paths)
    return context


def server_context(certificate: tuple[str, str] | None, client_ca: str) -> ssl.SSLContext:
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    if certificate:
        context.load_cert_chain(*certificate)
    else:
        with tempfile.TemporaryDirectory() as folder:  # as the real ones do when they are given none
            pair = f"{folder}/certificate", f"{folder}/key"
            try:
                subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj",
                                f"/CN={socket.gethostname()}",
                                "-out", pair[0], "-keyout", pair[1]], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Refused(f"no certificate is given and none can be made: {error}") from error
            context.load_cert_chain(*pair)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        every_ca_counts(context)
    return context


def ask(server: files.Kubeconfig | str, method: str, path: str, body: dict | None = None, seconds: float = 30) -> tuple[int, bytes]:
    """A request to the API as this program's kubeconfig says."""
    url = urlsplit(server if isinstance(server, str) else server.server)
    headers = {"Content-Type": "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"}
    if url.scheme == "https":
        context = client_context(server.ca, server.certificate, server.key, server.insecure)
        connection = http.client.HTTPSConnection(url.hostname, url.port or 443, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=seconds)
    if not isinstance(server, str) and server.token:
        headers["Authorization"] = f"Bearer {server.token}"
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
