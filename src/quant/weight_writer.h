// WeightWriter: reads blocks of a planned weight's rows, quantizes or converts them and writes them
// at their places in a shard. Thread: Write may be called from many with different scratch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/output_file.h"
#include "base/result.h"
#include "quant/calibration.h"
#include "quant/input_files.h"
#include "quant/int4.h"
#include "quant/quant_error.h"
#include "quant/quantize_plan.h"

namespace tern {

// Some rows of a weight; of a kCopy, some bytes.
struct WeightBlock {
  size_t weight = 0;  // index in QuantizePlan::weights
  int64_t first = 0, count = 0;
};

// The blocks of one weight, each small enough to stay in a core's cache and large enough to be read
// at the disk's speed.
void AppendBlocks(const PlannedWeight& weight, size_t index, std::vector<WeightBlock>* blocks);

// The memory of one thread.
struct BlockScratch {
  RowBlock rows;
  std::vector<float> floats;
  std::vector<int8_t> codes;
  std::vector<uint16_t> scales;
  std::vector<std::byte> out;
};

class WeightWriter {
 public:
  WeightWriter(const InputFiles& files, const QuantizePlan& plan, ScaleMethod method, int64_t group)
      : files_(files), plan_(plan), method_(method), group_(group) {}

  // Errors: InputFiles::Read's, OutputFile's; kInvalidArgument naming the tensor with a weight that
  // is NaN or infinite, copied ones included unless the architecture does not ask for them.
  Status Write(const WeightBlock& block, OutputFile& out, BlockScratch& scratch,
               QuantError* error) const;
  // A block of an INT4 weight by calibration, on the threads of `ops`.
  Status WriteCalibrated(const WeightBlock& block, const Gptq& solver, const Ops& ops,
                         OutputFile& out, BlockScratch& scratch, QuantError* error) const;

 private:
  Status Copy(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
              BlockScratch& scratch) const;
  Status Convert(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
                 BlockScratch& scratch) const;
  Status WriteInt4(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
                   BlockScratch& scratch, QuantError* error) const;
  Status WriteFp8(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
                  BlockScratch& scratch, QuantError* error) const;
  // Packs one row of codes, at `out` [columns / 2] bytes.
  void PackRow(const int8_t* codes, int64_t columns, std::byte* out) const;
  Status WriteScales(const PlannedWeight& weight, const WeightBlock& block, OutputFile& out,
                     const BlockScratch& scratch) const;

  const InputFiles& files_;
  const QuantizePlan& plan_;
  const ScaleMethod method_;
  const int64_t group_;
};

}  // namespace tern
