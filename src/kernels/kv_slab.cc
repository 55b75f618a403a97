#include "kernels/kv_slab.h"

namespace tern {

const char* KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kFp8E4m3:
      return "fp8_e4m3";
    case KvFormat::kFp8Tiled:
      return "fp8_tiled";
    case KvFormat::kFp8DsMla:
      return "fp8_ds_mla";
  }
  return "unknown";
}

}  // namespace tern
