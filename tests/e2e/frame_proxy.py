"""Between a decode worker and a bootstrap port: reads whole frames (docs/formats/pd_wire.md) and passes
them on as a rule says: later, twice, changed, out of order, not at all."""
import heapq
import itertools
import socket
import struct
import threading
import time

HEADER_BYTES, MAC_BYTES = 64, 32
TYPES = (None, "HELLO", "WELCOME", "CONFIRM", "REFUSE", "REQUEST", "PAGE", "LAST", "ACK", "DONE",
         "ABORT", "ABORT_ACK", "PING")

# XXH3-64 of 33 to 64 bytes with seed 0, by its specification.
_MASK = (1 << 64) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8")


def xxh3(data):
    def word(of, at):
        return struct.unpack_from("<Q", of, at)[0]

    def mix(at, secret):
        product = ((word(data, at) ^ word(_SECRET, secret)) *
                   (word(data, at + 8) ^ word(_SECRET, secret + 8)))
        return (product & _MASK) ^ (product >> 64)

    assert 32 < len(data) <= 64
    end = len(data)
    total = (end * 0x9E3779B185EBCA87 + mix(16, 32) + mix(end - 32, 48) + mix(0, 0) +
             mix(end - 16, 16)) & _MASK
    total = ((total ^ (total >> 37)) * 0x165667919E3779F9) & _MASK
    return total ^ (total >> 32)


class Frame:
    def __init__(self, data, from_prefill, number):
        self.data = data                  # whole, as it came
        self.from_prefill = from_prefill
        self.number = number              # of its type, on this connection and in this direction
        self.type = TYPES[data[6]]
        self.room, = struct.unpack_from("<Q", data, 24)

    def with_body_bytes(self, count):
        """The header claims so many, and its check is right."""
        head = bytearray(self.data[:HEADER_BYTES])
        struct.pack_into("<I", head, 8, count)
        struct.pack_into("<Q", head, 56, xxh3(bytes(head[:56])))
        return bytes(head) + self.data[HEADER_BYTES:]

    def flipped(self, at):
        return self.data[:at] + bytes([self.data[at] ^ 1]) + self.data[at + 1:]


class Cut(Exception):
    """Raised by a rule: so many bytes of the frame, then nothing more."""

    def __init__(self, after):
        super().__init__(after)
        self.after = after


def pass_on(frame):
    return [(0.0, frame.data)]


class Lane:
    """One direction of a connection: what goes out, and when."""

    def __init__(self, sink):
        self.sink, self.due = sink, []
        self.order = itertools.count()
        self.changed = threading.Condition()
        self.closed = False
        threading.Thread(target=self.run, daemon=True).start()

    def put(self, delay, data):
        with self.changed:
            heapq.heappush(self.due, (time.monotonic() + delay, next(self.order), data))
            self.changed.notify()

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify()

    def run(self):
        while True:
            with self.changed:
                while True:
                    wait = self.due[0][0] - time.monotonic() if self.due else None
                    if self.due and wait <= 0:
                        break
                    if self.closed and not self.due:
                        return
                    self.changed.wait(wait)
                data = heapq.heappop(self.due)[2]
            try:
                self.sink.sendall(data)
            except OSError:
                return


class FrameProxy:
    """`rule` is asked about every frame: a list of (seconds from now, bytes), or raises Cut."""

    def __init__(self, target, host="127.0.0.1"):
        self.target, self.rule = target, pass_on
        self.seen = []  # (type, from_prefill), in the order of their coming
        self.sockets = []
        self.listener = socket.create_server((host, 0))
        self.host, self.port = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target, timeout=5)
            except OSError:
                return
            far.settimeout(None)
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets += [near, far]
            threading.Thread(target=self.pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, True), daemon=True).start()

    @staticmethod
    def exactly(source, count):
        data = bytearray()
        while len(data) < count:
            piece = source.recv(min(count - len(data), 1 << 20))
            if not piece:
                raise OSError("closed")
            data += piece
        return bytes(data)

    def pump(self, source, sink, from_prefill):
        lane = Lane(sink)
        numbers = dict.fromkeys(TYPES, 0)
        try:
            while True:
                head = self.exactly(source, HEADER_BYTES)
                assert head[:4] == b"TNPD"
                assert struct.unpack_from("<Q", head, 56)[0] == xxh3(head[:56])
                body_bytes, = struct.unpack_from("<I", head, 8)
                body = self.exactly(source, body_bytes + (MAC_BYTES if head[7] & 1 else 0))
                kind = TYPES[head[6]]
                frame = Frame(head + body, from_prefill, numbers[kind])
                numbers[kind] += 1
                self.seen.append((kind, from_prefill))
                try:
                    for delay, data in self.rule(frame):
                        lane.put(delay, data)
                except Cut as cut:
                    lane.put(0, frame.data[:cut.after])
                    time.sleep(0.05)
                    break
        except OSError:
            pass
        lane.close()
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut_all(self):
        for one in self.sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
        self.sockets.clear()

    def close(self):
        self.cut_all()
        self.listener.close()
