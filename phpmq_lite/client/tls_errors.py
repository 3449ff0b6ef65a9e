"""Says what is wrong between a client and a listener if only one of them uses TLS."""

from typing import Final

ALERT: Final = b"\x15\x03"  # the first bytes of a listener with TLS for a client without it
_TIMES: Final = {9: "is not valid yet", 10: "has expired"}  # by OpenSSL's number
_NAMES: Final = (62, 63, 64)  # another host name, mail address or IP address


def tls_reason(error: OSError, plain: str | None, allow: str = "") -> str | None:
    """Describe why TLS failed and what to do, or return None if something else did.

    ``plain`` is the address to use without TLS, or None if the client did not use TLS; ``allow`` is
    the listener's setting for the addresses that may connect, if it has one.
    """
    if verify := getattr(error, "verify_message", None):  # only TLS errors have these attributes
        verify, code = verify.rstrip("."), getattr(error, "verify_code", 0)
        if code in _NAMES:
            return f"{verify}; connect with a name of the certificate"
        if code in _TIMES:
            return f"its certificate {_TIMES[code]}; renew the tls_cert of the listener"
        return (
            f"its certificate is not trusted ({verify}); name the CA that issued it with --tls-ca "
            "FILE (in Python, ssl=ssl.create_default_context(cafile=FILE))"
        )
    instead = f"use {plain}, or set tls_cert and tls_key of that listener"
    reason = getattr(error, "reason", None)
    if plain is not None and reason == "WRONG_VERSION_NUMBER":
        return f"it does not use TLS; {instead}"
    is_ended = isinstance(error, ConnectionResetError) or reason == "UNEXPECTED_EOF_WHILE_READING"
    if plain is not None and is_ended:
        foreign = allow and f"not allow this address ({allow}), or "
        return f"it ended the TLS handshake: it may {foreign}not use TLS (then {instead})"
    return f"TLS failed: {reason.replace('_', ' ').lower()}" if reason is not None else None


def tls_needed(peer: object) -> str:
    """Describe a listener that answered with a TLS alert."""
    return (
        f"{peer} uses TLS, and this client does not; use phpmqs://{peer}"
        " (in Python, ssl=ssl.create_default_context())"
    )
