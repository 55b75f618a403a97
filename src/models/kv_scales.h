// The KV cache scales that a checkpoint brings: `model.layers.N.self_attn.k_scale` and `v_scale`,
// one float each, where its config has a kv_cache_scheme. Lives during loading, on one thread.
#pragma once

#include <span>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "kv/page_format.h"

namespace tern {

// Sets k_scale and v_scale of each layer; layers without stay at 1. Errors: kInvalidArgument naming
// file and tensor: more than one number, not a float type, not positive and finite.
Status ReadKvScales(const Checkpoint& checkpoint, std::span<KvLayerSpec> layers);

}  // namespace tern
