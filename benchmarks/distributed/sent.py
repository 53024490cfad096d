"""Bytes that this process has sent over TCP, which is how gloo sends: the kernel counts them for each connection."""

import os
import socket
import struct

BYTES_SENT = 200  # where struct tcp_info of Linux has tcpi_bytes_sent (since 4.19)


def sent_bytes():
    return sum(filter(None, map(_of_descriptor, os.listdir("/proc/self/fd"))))


def _of_descriptor(name):
    try:
        with socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.type != socket.SOCK_STREAM or connection.family == socket.AF_UNIX:
                return 0
            found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT + 8)
    except OSError:  # no socket, or closed meanwhile
        return 0
    return struct.unpack_from("Q", found, BYTES_SENT)[0] if len(found) == BYTES_SENT + 8 else 0
