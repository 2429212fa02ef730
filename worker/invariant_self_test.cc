#include "worker/invariant_self_test.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/kernels/float_mode.h"

namespace hearth {
namespace {

// A window longer than this is not slid past: the test would take longer than the load.
constexpr int kLongestWindow = 4096;
// Rows that the head takes at once; the engine asks for one.
constexpr int kHeadRows = 17;

// Each size at which a kernel may change its way: those below a few tiles, those about a power of
// two, and what a step has that is alone.
std::vector<int> SizesUpTo(int rows) {
  std::vector<int> sizes;
  for (int m = 1; m <= 17; ++m) sizes.push_back(m);
  for (const int near : {32, 64, 128, 256}) sizes.insert(sizes.end(), {near - 1, near, near + 1});
  sizes.push_back(512);
  sizes.erase(std::remove_if(sizes.begin(), sizes.end(), [&](int m) { return m >= rows; }),
              sizes.end());
  return sizes;
}

uint64_t RowDigest(const Buffer& values, int64_t row) {
  return SliceDigest(values.view.Row(row), static_cast<size_t>(values.columns) * sizeof(float));
}

}  // namespace

InvariantSelfTest::InvariantSelfTest(InvariantGemma::Rep* rep) : rep_(rep) {
  const ModelConfig& config = rep->config;
  auto layout = std::make_shared<KvLayout>(*rep->layout);
  layout->layers.clear();
  for (const bool local : {true, false}) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      if (config.is_local(layer) != local) continue;
      layers_.push_back(layer);
      layout->layers.push_back(local ? LayerGroup::kLocal : LayerGroup::kGlobal);
      break;
    }
  }
  const int chunk = static_cast<int>(rep->chunk);
  rows_ = std::min(std::min(config.sliding_window, kLongestWindow) + chunk + 1,
                   config.max_position_embeddings);
  sizes_ = SizesUpTo(rows_);
  // Nothing is dropped: each pass begins again in the middle.
  layout->window = static_cast<uint32_t>(rows_) + 1;
  const uint64_t splits = static_cast<uint64_t>(rows_ / chunk + 1);
  arena_ = std::make_unique<KvBlocks>(splits * layers_.size() *
                                      layout->SliceBytes(layout->chunk_tokens));
  kv_ = InvariantKv(std::move(layout), arena_.get(), rep->number);
}

bool InvariantSelfTest::IsCompared(int row) const {
  if (row == rows_ - 1) return true;
  return std::any_of(sizes_.begin(), sizes_.end(),
                     [&](int m) { return row == rows_ - m || row == rows_ - m + m / 2; });
}

void InvariantSelfTest::See(const char* operation, const Buffer& values, int begin, bool local) {
  const uint64_t number = operation_++;
  const int rows = rows_ - begin;
  if (!status_.ok()) return;
  if (begin == 0) {
    for (int row = 0; row < rows; ++row) {
      if (!IsCompared(row)) continue;
      expected_[number * static_cast<uint64_t>(rows_) + static_cast<uint64_t>(row)] =
          RowDigest(values, row);
    }
    return;
  }
  for (const int row : {begin, begin + rows / 2, rows_ - 1}) {
    if (RowDigest(values, row - begin) ==
        expected_.at(number * static_cast<uint64_t>(rows_) + static_cast<uint64_t>(row))) {
      continue;
    }
    status_ = absl::FailedPreconditionError(
        absl::StrCat("the ", operation, " of a ", local ? "local" : "global", " layer gives row ",
                     row, " other bits among M = ", rows, " rows than among ", rows_));
    return;
  }
}

absl::Status InvariantSelfTest::Pass(int begin, Buffer* x) {
  ++passes_;
  kv_.Rewind(begin);
  if (absl::Status room = kv_.MakeRoom(rows_ - begin); !room.ok()) return room;
  operation_ = 0;
  std::vector<int32_t> tokens;
  for (int i = begin; i < rows_; ++i) tokens.push_back(SpreadToken(i, rep_->config.vocab_size));
  *x = rep_->Embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const InvariantLayer& layer = rep_->layers[static_cast<size_t>(layers_[i])];
    rep_->witness = [&](const char* operation, const Buffer& values) {
      See(operation, values, begin, layer.local);
    };
    rep_->AttendInLayer(layer, static_cast<int>(i), &kv_, x);
    rep_->FeedForwardInLayer(layer, x);
  }
  rep_->witness = nullptr;
  kv_.Advance(rows_ - begin);
  return status_;
}

absl::Status InvariantSelfTest::Head(const Buffer& x) {
  const int64_t most = std::min<int64_t>(kHeadRows, x.view.rows);
  const Buffer all = rep_->HeadOf(x, x.view.rows - most, most);
  for (int64_t m = 1; m < most; m = m < 3 ? m + 1 : m * 2) {
    const Buffer some = rep_->HeadOf(x, x.view.rows - m, m);
    for (const int64_t row : {int64_t{0}, m / 2, m - 1}) {
      if (RowDigest(some, row) == RowDigest(all, most - m + row)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "the head gives row ", row, " other bits among M = ", m, " rows than among ", most));
    }
  }
  return absl::OkStatus();
}

absl::Status InvariantSelfTest::Run() {
  const FloatMode mode;
  Buffer all(0, 0), some(0, 0);
  if (absl::Status first = Pass(0, &all); !first.ok()) return first;
  for (const int m : sizes_) {
    if (absl::Status pass = Pass(rows_ - m, &some); !pass.ok()) return pass;
  }
  return Head(all);
}

}  // namespace hearth
