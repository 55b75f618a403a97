// NameMap: GGUF tensor names in Hugging Face's spelling, so that models know one set of names.
// Thread: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace tern {

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight". Names that have no twin
// ("rope_freqs.weight") come back unchanged.
std::string HfNameFromGguf(std::string_view gguf_name);

}  // namespace tern
