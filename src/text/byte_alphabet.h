// GPT-2's printable byte alphabet: vocabularies of byte-level BPE write each byte as one visible
// character (a space is U+0120). Thread: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tern {

// Bytes of a token written in the alphabet. False when a character is outside the alphabet: then
// *bytes is `token` itself, as HuggingFace's ByteLevel decoder has it.
bool DecodeByteAlphabet(std::string_view token, std::string* bytes);
// The other way.
std::string EncodeByteAlphabet(std::string_view bytes);

}  // namespace tern
