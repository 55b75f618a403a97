"""The model_id of src/pd/model_id_test.cc, computed from docs/formats/pd_wire.md alone. Prints it.

usage: model_id.py
"""
import hashlib, struct


def digest(pieces): return hashlib.sha256(b"".join(struct.pack("<Q", len(p)) + p for p in pieces)).digest()


def bf16(x): return struct.pack("<f", x)[2:]  # exact for the values below


fields = digest([b"model_type", b"toy", b"hidden_size", struct.pack("<q", 64), b"rms_norm_eps", struct.pack("<d", 1e-6),
                 b"norm_topk_prob", b"\1", b"sparse_layers", b"\0\1"])
vocabulary, merges = digest([b"a", b"b", b"ab"]), digest([b"a", b"b"])
added = digest([b"<eos>", struct.pack("<q", 3)])
tensors = digest([b"m.a_norm.weight", bf16(1.0) + bf16(0.5), b"m.e_score_correction_bias", struct.pack("<f", 0.25)])
print(hashlib.sha256(b"tern model 1" + fields + vocabulary + merges + added + tensors).hexdigest())
