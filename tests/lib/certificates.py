"""Throw-away certificates and keys, made by openssl when a test runs."""
import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from lib.common import run


class CA:
    """A CA in a folder; names of files are NAME.crt and NAME.key."""

    def __init__(self, folder: Path, name: str = "ca"):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate, self.private = folder / f"{name}.crt", folder / f"{name}.key"
        self._key(self.private)
        run("openssl", "req", "-x509", "-new", "-key", self.private, "-days", 30, "-subj", f"/CN={name}", "-out", self.certificate,
            "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")

    @classmethod
    def there(cls, folder: Path, certificate: Path, private: Path) -> "CA":
        """One that somebody made; what it signs goes into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        found = cls.__new__(cls)
        found.folder, found.certificate, found.private = folder, certificate, private
        return found

    @staticmethod
    def _key(path: Path):
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)

    def sign(self, name: str, subject: str = "", names: str = "DNS:localhost,IP:127.0.0.1", days: int = 30,
             certificate: Path | None = None, private: Path | None = None) -> tuple[Path, Path]:
        """subject is like /O=system:nodes/CN=system:node:node-1; negative days make one that has expired."""
        certificate, private = certificate or self.folder / f"{name}.crt", private or self.folder / f"{name}.key"
        for path in (certificate, private):
            path.parent.mkdir(parents=True, exist_ok=True)
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        self._key(private)
        run("openssl", "req", "-new", "-key", private, "-subj", subject or f"/CN={name}", "-out", request)
        run("openssl", "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.private, "-CAcreateserial", "-days", abs(days),
            "-extfile", extensions, "-out", certificate)
        if days < 0:
            # From its release 3.5 on openssl makes none that ends before it begins.
            aged(certificate, self, 1 - days, days)
        return certificate, private


def aged(certificate: Path, ca: CA, since_days: float, left_days: float):
    """The same certificate with another life, signed anew: one that began long ago, which openssl x509 cannot make."""
    one = x509.load_pem_x509_certificate(certificate.read_bytes())
    issuer = x509.load_pem_x509_certificate(ca.certificate.read_bytes())
    key = serialization.load_pem_private_key(ca.private.read_bytes(), None)
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(issuer.subject, one.subject, one.public_key(), x509.random_serial_number(), now - since_days * day,
                                      now + left_days * day)
    for extension in one.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def public_key(private: Path, public: Path):
    run("openssl", "pkey", "-in", private, "-pubout", "-out", public)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict:
    """TLS without a wire: both sides verify each other as their contexts say; gives back the client's certificate, if it was asked for."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [other, one]
    for _ in range(20):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return one.getpeercert() or {}
    raise AssertionError("no end of the handshake")
