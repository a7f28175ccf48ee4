"""Credentials: TLS for calls. Decides only how gRPC gets the certificates; ``access`` decides which."""

from __future__ import annotations

import grpc

from acker_service.access.certificates import Certificates, Pems


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return credentials that follow the files. gRPC asks for them at each handshake."""
    served = certificates.renew()

    def renew() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        found = certificates.renew()
        if found is served:
            return None
        served = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(served),
        renew,  # type: ignore[arg-type]  # None means that nothing has changed
        require_client_authentication=certificates.needs_client_certificate,
    )


def own_credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    """Return credentials with which this server calls itself: it trusts and shows its own certificate."""
    pems = certificates.renew()
    return grpc.ssl_channel_credentials(pems.certificate, pems.key, pems.certificate)


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.client_ca)
