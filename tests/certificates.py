"""Certificates for servers on this machine, made with openssl."""

import subprocess
from pathlib import Path


def make_certificate(
    folder: Path, name: str = "server", days: int = 2, subject: str = "IP:127.0.0.1"
) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate for a subject and of its key; its common name is `name`."""
    certificate, key, request, names = (
        folder / f"{name}{end}" for end in (".pem", "-key.pem", ".csr", ".ext")
    )
    names.write_text(f"subjectAltName={subject}")
    kind = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        f"/CN={name}",
    )
    ask = ("openssl", "req", "-new", *kind, "-keyout", key, "-out", request)
    sign = (
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-signkey",
        key,
        "-days",
        f"{days}",
        "-extfile",
        names,
    )
    for command in (ask, (*sign, "-out", certificate)):
        subprocess.run(command, check=True, capture_output=True)
    return certificate, key
