"""Runs inside a guest: opens whatever it is told to open, the way somebody would who wants to get out."""

import contextlib
import glob
import socket
import ssl
import struct
import sys

WAIT_S = 8


def bytes_of(text):
    return text.encode().decode("unicode_escape").encode("latin-1")


def said(connection):
    connection.settimeout(WAIT_S)
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            sys.stdout.write(data.decode("latin-1")[:2000])


def tcp(host, port):
    return socket.create_connection((host, int(port)), WAIT_S)


def blind():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def send(host, port, *parts):
    connection = tcp(host, port)
    for part in parts:
        connection.sendall(bytes_of(part))
    said(connection)


def after(host, port, first, then):
    connection = tcp(host, port)
    connection.sendall(bytes_of(first))
    print(connection.recv(65536))
    connection.sendall(bytes_of(then))
    said(connection)


def udp(host, port, data="x" * 64):
    sender = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sender.settimeout(3)
    sender.sendto(bytes_of(data), (host, int(port)))
    print(sender.recv(4096))


def sni(host, port, name, request):
    connection = blind().wrap_socket(tcp(host, port), server_hostname=name or None)
    connection.sendall(bytes_of(request))
    said(connection)


def tunnel(target, name, request):
    connection = tcp("127.0.0.1", 10800)
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    print(connection.recv(4096))
    connection = blind().wrap_socket(connection, server_hostname=name)
    connection.sendall(bytes_of(request))
    said(connection)


def raw(family, kind, protocol, host, data, port=0):
    sender = socket.socket(int(family), int(kind), int(protocol))
    sender.settimeout(3)
    sender.sendto(bytes_of(data), (host, int(port)))
    print("sent")


def packet(device):
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sender.bind((device, 0))
    there = socket.inet_aton("198.18.255.1"), socket.inet_aton("198.51.100.20")
    head = struct.pack("!BBHHHBBH4s4s", 69, 0, 28, 1, 0, 64, 17, 0, *there)
    sender.send(b"\xff" * 6 + b"\x02" * 6 + b"\x08\x00" + head + struct.pack("!HHHH", 1, 53, 8, 0))
    print("sent")


def vsock():
    connection = socket.socket(40, socket.SOCK_STREAM)
    connection.settimeout(3)
    connection.connect((2, 1024))
    print("connected")


def query(server, name, kind, over="udp"):
    question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    message = struct.pack("!HHHHHH", 7, 256, 1, 0, 0, 0) + question + struct.pack("!HH", int(kind), 1)
    if over == "tcp":
        connection = tcp(server, 53)
        connection.sendall(struct.pack("!H", len(message)) + message)
    else:
        connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        connection.settimeout(5)
        connection.sendto(message, (server, 53))
    print(connection.recv(4096))


def port():
    for place in glob.glob("/dev/vport*"):
        with open(place, "wb", 0) as device:
            device.write(b"x" * 64)
        print("written", place)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
