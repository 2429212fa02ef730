#include "worker/model/invariant/kv_staging.h"

#include <algorithm>
#include <cassert>

#include "worker/device/program_list.h"

namespace hearth {

KvStaging::~KvStaging() { Release(); }

void KvStaging::Release() {
  for (Area& area : areas_) {
    if (area.memory != nullptr) device_->Free(std::exchange(area.memory, nullptr));
    area.capacity = 0;
  }
}

bool KvStaging::Fits(const Counts& more) const {
  return areas_[0].staged.size() + more[0] <= areas_[0].capacity &&
         areas_[1].staged.size() + more[1] <= areas_[1].capacity;
}

bool KvStaging::Reserve(const Counts& counts) {
  constexpr size_t kGrain = 64;  // blocks; so that a growing sequence seldom allocates
  assert(is_empty());
  for (const bool is_global : {false, true}) {
    Area& area = areas_[is_global];
    const size_t count = counts[is_global];
    if (count <= area.capacity) continue;
    device_->Free(std::exchange(area.memory, nullptr));
    for (const size_t capacity : {(count + kGrain - 1) / kGrain * kGrain, count}) {
      const size_t slices = 2 * capacity + static_cast<size_t>(shape_.LayersIn(is_global));
      if (area.memory != nullptr) continue;
      area.memory = device_->Allocate(slices * StagedSliceBytes());
      area.capacity = area.memory == nullptr ? 0 : capacity;
    }
    if (area.memory == nullptr) return false;
  }
  return true;
}

std::pair<std::byte*, bool> KvStaging::Stage(bool is_global, const std::byte* block) {
  Area& area = areas_[is_global];
  const size_t at = 2 * area.staged.size() * StagedSliceBytes();
  const auto [known, is_new] =
      area.staged.try_emplace(block, static_cast<std::byte*>(area.memory) + at);
  assert(area.staged.size() <= area.capacity);
  return {known->second, is_new};
}

std::byte* KvStaging::AddOffloaded(const std::byte* block) {
  assert(!widens_);
  const auto [staged, is_new] = Stage(true, block);
  if (is_new) offloaded_.emplace_back(block, staged);
  return staged;
}

std::byte* KvStaging::AddQuantized(bool is_global, QuantizedBlock quantized) {
  const auto [staged, is_new] = Stage(is_global, quantized.quantized);
  quantized.plain = staged;
  if (is_new) areas_[is_global].quantized.push_back(quantized);
  return staged;
}

std::byte* KvStaging::AddWidened(bool is_global, const std::byte* block) {
  assert(widens_);
  const auto [staged, is_new] = Stage(is_global, block);
  if (is_new) areas_[is_global].widened.push_back({block, staged});
  return staged;
}

void KvStaging::AddCompleted(bool is_global, const QuantizedBlock& block) {
  areas_[is_global].completed.push_back(block);
}

void KvStaging::Clear() {
  offloaded_.clear();
  for (Area& area : areas_) {
    area.staged.clear();
    area.quantized.clear();
    area.completed.clear();
    area.widened.clear();
  }
}

bool KvStaging::is_empty() const {
  const auto is_unused = [](const Area& area) {
    return area.staged.empty() && area.completed.empty();
  };
  return std::all_of(std::begin(areas_), std::end(areas_), is_unused);
}

void KvStaging::BeforeAttention(int layer) {
  const bool is_global = shape_.is_global[static_cast<size_t>(layer)];
  const int number = shape_.LayersBefore(layer);
  if (is_global && !offloaded_.empty()) device_->MakeLaunchesWait(*copied_);
  const Area& area = areas_[is_global];
  LaunchWidening(area.widened, number);
  if (shape_.kv_is_bf16) {
    LaunchAll<QuantizeKvProgram<BFloat16>>(area.completed, number);
  } else {
    LaunchAll<QuantizeKvProgram<float>>(area.completed, number);
  }
  if (shape_.kv_is_bf16 && !widens_) {
    LaunchAll<DequantizeKvProgram<BFloat16>>(area.quantized, number);
  } else {
    LaunchAll<DequantizeKvProgram<float>>(area.quantized, number);
  }
  if (is_global) StartCopies(number + 1);
}

template <class Quantizer>
void KvStaging::LaunchAll(absl::Span<const QuantizedBlock> blocks, int number) {
  for (size_t done = 0; done < blocks.size(); done += QuantizedSlices::kMost) {
    const auto some = blocks.subspan(done, QuantizedSlices::kMost);
    Quantizer program;
    program.slices = {
        static_cast<int>(some.size()), number, shape_.split, shape_.kv_heads, shape_.head_dim, {}};
    std::copy(some.begin(), some.end(), program.slices.blocks);
    Launch(device_, program, program.slices.count * 2 * shape_.kv_heads);
  }
}

void KvStaging::LaunchWidening(absl::Span<const WidenKvProgram::Pair> pairs, int number) {
  for (size_t done = 0; done < pairs.size(); done += WidenKvProgram::kMost) {
    const auto some = pairs.subspan(done, WidenKvProgram::kMost);
    WidenKvProgram program = {static_cast<int>(some.size()),
                              number,
                              int64_t{2} * shape_.kv_heads * shape_.split * shape_.head_dim,
                              {}};
    std::copy(some.begin(), some.end(), program.pairs);
    Launch(device_, program, program.count * WidenKvProgram::kBlocksEach);
  }
}

// Starts the copies of global layer number `number`.
void KvStaging::StartCopies(int number) {
  if (number >= shape_.LayersIn(true) || offloaded_.empty()) return;
  device_->MakeTransfersWait();  // until earlier launches have read the slices
  const auto bytes = static_cast<size_t>(shape_.SliceBytes());
  const size_t offset = static_cast<size_t>(number) * bytes;
  for (const auto& [from, to] : offloaded_) {
    device_->StartTransfer(CopyWay::kIn, to + offset, from + offset, {bytes});
  }
  copied_ = device_->RecordTransfers();
}

}  // namespace hearth
