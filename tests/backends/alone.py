"""An engine of a process that is alone: everything but other ranks."""

import secrets

from tf_libra.backends import engine as engine_lib

HOSTS = ["127.0.0.1", engine_lib.UNIX]


def alone(num_lanes: int = 2, host: str = HOSTS[0]) -> engine_lib.Engine:
    address = engine_lib.listen(host)
    secret = secrets.token_bytes(engine_lib.SECRET_BYTES)
    return engine_lib.connect(0, [address], secret, num_lanes, 10.0, 5.0)
