"""Valid and invalid certificates, made by the openssl command."""

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Final

import pytest

Certificate = tuple[Path, Path]  # certificate and key
EC: Final = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA: Final = ("rsa:2048",)


class CertificateAuthority:
    """Makes the certificates of a folder, one per name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(
        self, name: str, *arguments: str, issuer: str = "", kind: tuple[str, ...] = EC
    ) -> Certificate:
        """Create a certificate for localhost, signed by itself or by an earlier ``issuer``."""
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        if not cert.exists():
            ca = self.folder / issuer
            signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key") if issuer else ()
            openssl(
                *("req", "-x509", "-newkey", *kind, "-nodes"),
                *("-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", cert),
                *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", *signed, *arguments),
            )
            key.chmod(0o600)
        return cert, key

    def make_dated(self, name: str, begin: str, end: str) -> Certificate:
        """Create a certificate with dates, ``YYYYMMDDhhmmssZ``; only ``openssl ca`` takes them."""
        _, key = self.make(name)
        folder = self.folder / f"{name}.ca"
        folder.mkdir()
        (folder / "index.txt").touch()
        (folder / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={folder}/index.txt\nnew_certs_dir={folder}\n"
            "rand_serial=yes\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
        )
        request, cert = folder / "request.csr", folder / "dated.pem"
        openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
        openssl(
            *("ca", "-batch", "-notext", "-config", folder / "ca.cnf", "-selfsign"),
            *("-keyfile", key, "-in", request, "-out", cert, "-startdate", begin, "-enddate", end),
        )
        return cert, key


def openssl(*arguments: str | Path) -> None:
    """Run the openssl command; skip the test without it."""
    command = shutil.which("openssl")
    if command is None:
        pytest.skip("no openssl command to make a certificate with")
    subprocess.run([command, *arguments], check=True, capture_output=True)


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server and of a client that trusts only it."""
    certificate, key = CertificateAuthority(folder).make("localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))
