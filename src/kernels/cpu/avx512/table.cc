#include "kernels/cpu/isa_common.h"
// The level's lanes come before the algorithms over them.
#include "kernels/cpu/avx512/vec.h"
// Algorithms.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx512/attention_bf16.h"
#include "kernels/cpu/avx512/attention_row_bf16.h"
#include "kernels/cpu/avx512/index_scores_bf16.h"
#include "kernels/cpu/avx512/matmul_bf16.h"
#include "kernels/cpu/avx512/peak.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/matmul_int8.h"

namespace tern {

void FillAvx512Table(IsaTable* table) {
  *table = {.name = "avx512",
            .bf16_activations = true,
            .matmul = MatMul,
            .round_row = RoundRow,
            .quantize_row = QuantizeRow,
            .to_e4m3 = ToE4m3,
            .to_bf16 = ToBf16,
            .rms_norm = RmsNorm,
            .layer_norm = LayerNorm,
            .rope = Rope,
            .silu_mul = SiluMul,
            .add = AddTo,
            .expand_rows = ExpandRows,
            .attention_chunk = AttentionChunkOf512,
            .attention_row = AttentionRow512,
            .attention_merge = AttentionMerge,
            .attention_finish = AttentionFinish,
            .index_scores = IndexScores512,
            .largest = Largest,
            .arg_max = ArgMax,
            .sum_exp = SumExp,
            .peak = kPeakLoops};
}

}  // namespace tern
