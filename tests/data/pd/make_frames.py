"""Frames of docs/formats/pd_wire.md, written from the document alone.

usage: make_frames.py OUT.json     (xxhash 3.5 for XXH3-64)

One object: name -> hex of a whole frame. src/pd/wire_test.cc encodes the same values and compares the bytes.
"""
import hashlib, hmac, json, struct, sys

import xxhash

HELLO, WELCOME, CONFIRM, REFUSE, REQUEST, PAGE, LAST, ACK, DONE, ABORT, ABORT_ACK, PING = range(1, 13)


def frame(type, meta=b"", payload=b"", flags=0, generation=0, sequence=0, room=0, tag=0, slot=0, page=0, rows=0, format=0):
    body = len(meta) + 8 + len(payload) if meta else 0
    head = struct.pack("<4sHBBIIQQQIIHB5x", b"TNPD", 1, type, flags, body, generation, sequence, room, tag, slot, page, rows, format)
    assert len(head) == 56
    check = xxhash.xxh3_64_intdigest(head, seed=0)
    if meta: meta += struct.pack("<Q", xxhash.xxh3_64_intdigest(meta, seed=check))
    return head + struct.pack("<Q", check) + meta + payload


def text(t): return struct.pack("<H", len(t.encode())) + t.encode()


def hello(role, slots, nonce, conversion=0):
    layers = struct.pack("<BBBBIIIff", 0, 2, 255, 0, 2, 16, 0, 0.5, 0.25)    # grouped-query, fp8_e4m3
    layers += struct.pack("<BBBBIIIff", 1, 1, 1, 0, 64, 8, 40, 1.0, 1.0)     # latent, bf16, indexer keys in bf16
    return (bytes(range(32)) + struct.pack("<Q", 0x1122334455667788) + bytes([nonce]) * 32 + struct.pack("<III", 64, slots, 1 << 20)
            + struct.pack("<BBH", role, conversion, 2) + layers)


tokens = struct.pack("<3i", 5, -1, 70000)
digest = hashlib.sha256(b"tern prompt 1" + tokens).digest()
frames = {
    "hello": frame(HELLO, hello(1, 8, 0xA1, conversion=1)),
    "welcome": frame(WELCOME, hello(2, 0, 0xB2)),
    "confirm": frame(CONFIRM),
    "refuse": frame(REFUSE, struct.pack("<H", 10) + text("another model, n\u00f6")),
    "request": frame(REQUEST, digest + struct.pack("<IIQQ", 3, 2, 0xDEADBEEF, 7) + struct.pack("<I", 0) + text("") + text(""),
                     generation=3, sequence=1, room=6815078032026544857),
    "request_again": frame(REQUEST, digest + struct.pack("<IIQQ", 3, 2, 9, 8) + struct.pack("<I", 3) + tokens + text("salt") + text("key"),
                           generation=4, sequence=2, room=6815078032026544857),
    "page": frame(PAGE, struct.pack("<QQ", 0x0102030405060708, 0xFFFFFFFFFFFFFFFF), b"payload", generation=3, sequence=1,
                  room=6815078032026544857, tag=0xDEADBEEF, slot=5, page=1, rows=17, format=3),
    "last": frame(LAST, digest + struct.pack("<IIiIfIQQI", 3, 2, 42, 1, -0.5, 1, 99, 3, 2) + struct.pack("<ifif", 42, -0.5, 7, -1.25),
                  generation=3, sequence=2, room=6815078032026544857),
    "ack": frame(ACK, generation=3, sequence=5, room=6815078032026544857, slot=5, page=1),
    "done": frame(DONE, generation=3, sequence=6, room=6815078032026544857),
    "abort": frame(ABORT, struct.pack("<H", 2) + text("out of pages"), generation=3, sequence=7, room=1),
    "abort_ack": frame(ABORT_ACK, generation=3, sequence=8, room=1),
    "ping": frame(PING, sequence=9),
}

# A whole handshake with a secret, and the first frame after it in each direction.
secret = b"sixteen bytes ok"
h = frame(HELLO, hello(1, 8, 0xA1), flags=1) + bytes(32)
w = frame(WELCOME, hello(2, 0, 0xB2), flags=1)
w += hmac.digest(secret, b"tern pd welcome 1" + h + w, "sha256")
c = frame(CONFIRM, flags=1)
c += hmac.digest(secret, b"tern pd confirm 1" + h + w + c, "sha256")
key = lambda d: hmac.digest(secret, b"tern pd frames 1" + bytes([d]) + b"\xA1" * 32 + b"\xB2" * 32, "sha256")
sign = lambda d, f: f + hmac.digest(key(d), f, "sha256")
frames |= {
    "secret_hello": h, "secret_welcome": w, "secret_confirm": c,
    "secret_done": sign(1, frame(DONE, flags=1, generation=1, sequence=1, room=2)),
    "secret_abort": sign(2, frame(ABORT, struct.pack("<H", 1) + text("gone"), flags=1, generation=1, sequence=1, room=2)),
}
with open(sys.argv[1], "w") as out:
    json.dump({name: data.hex() for name, data in frames.items()}, out, indent=1)
    out.write("\n")
