#include "worker/device/product_tuning.h"

#include <algorithm>
#include <functional>

#include "worker/device/product_choice.h"

namespace hearth {
namespace {

// A product runs in as many layers as have this many bytes of weights, which is more than the
// largest cache of a GPU (50 MB on an H100).
constexpr int64_t kColdBytes = int64_t{128} << 20;
constexpr int kRuns = 3;

// Returns whether a tiling is worth measuring for `rows` rows.
bool Fits(ProductKind kind, int tiling, int rows, bool is_pair, size_t shared_bytes) {
  const ShapeFacts facts = FactsOf(kind, tiling);
  if (facts.shared_bytes > shared_bytes || (is_pair && !facts.takes_pairs)) return false;
  // Many small blocks would only spend the time for the measurements.
  if (kind != ProductKind::kFloat) return facts.rows >= std::min(rows, 512) / 32;
  const int least = rows > 64 ? 32 : rows > 4 ? rows / 4 : rows;
  return facts.rows >= least && (rows > 64 || facts.rows <= std::max(2 * rows, 4));
}

}  // namespace

double ProductTuner::Time(const std::function<void()>& work, const std::function<void()>& before) {
  double best = -1;
  for (int run = 0; run < kRuns; ++run) {
    before();
    const double us = device_->Time(work);
    if (us < 0) return us;
    spent_us_ += us;
    best = run == 0 ? us : std::min(best, us);
  }
  ++measured_;
  return best;
}

std::vector<TilingTime> ProductTuner::TimesOf(StepProduct product, int rows) {
  const DeviceMatrix& matrix = step_->MatrixOf(product, 0);
  const auto bytes = static_cast<int64_t>(BytesOf(matrix));
  const int64_t cold = (kColdBytes + bytes - 1) / bytes, all = model_->shape.layers();
  const int layers = product == kHead ? 1 : static_cast<int>(std::min(cold, all));
  // If the layers have too few weights, the output matrix replaces them in the caches.
  const auto flush = [&] {
    if (bytes * layers >= kColdBytes) return;
    step_->LaunchProduct(kHead, 0, step_->ChoiceFor(1)[kHead], 1);
  };
  const ProductKind kind = step_->KindFor(product, rows);
  std::vector<TilingTime> times;
  for (int tiling = 0; tiling < TilingCount(kind); ++tiling) {
    if (spent_us_ > most_us_) return {};  // some tilings are not measured: the choice stays
    if (!Fits(kind, tiling, rows, product == kGateUp, device_->shared_bytes())) continue;
    const auto work = [&] {
      for (int layer = 0; layer < layers; ++layer) {
        step_->LaunchProduct(product, layer, tiling, rows);
      }
    };
    const double us = Time(work, flush);
    if (us >= 0) times.push_back({us / layers, tiling});
  }
  std::sort(times.begin(), times.end(),
            [](const TilingTime& a, const TilingTime& b) { return a.us < b.us; });
  return times;
}

// Returns false if the time is spent.
bool ProductTuner::TuneRows(int rows) {
  ProductChoice choice = step_->ChoiceFor(rows);
  for (const StepProduct product : {kQkv, kOut, kGateUp, kDown, kHead}) {
    if (product == kHead && rows > DeviceStep::kGraphRows) continue;
    const std::vector<TilingTime> times = TimesOf(product, rows);
    if (!times.empty()) choice[product] = times[0].tiling;
  }
  step_->SetChoice(rows, choice);
  return spent_us_ <= most_us_;
}

// Sets the largest number of rows up to which overlap makes all steps faster. If the time is spent
// before a slower step is found, the larger steps stay as they are. The steps compute one sequence
// in KV blocks of their own.
void ProductTuner::TuneOverlap() {
  DeviceArena arena(device_);
  std::array<std::byte*, 2> blocks;
  for (int group = 0; group < 2; ++group) {
    const int64_t bytes = model_->shape.LayersIn(group == 1) * model_->shape.SliceBytes();
    blocks[static_cast<size_t>(group)] = arena.Take<std::byte>(static_cast<size_t>(bytes));
  }
  if (!device_->error().empty()) return;
  const int unmeasured = step_->overlap_rows();
  int overlapping = 0;
  const int most = std::min({DeviceStep::kGraphRows, model_->shape.split, step_->most_rows()});
  for (int rows = 1; rows <= most; rows *= 2) {
    if (spent_us_ > most_us_) {
      overlapping = std::max(overlapping, unmeasured);
      break;
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(rows));
    const DevicePart part = {
        tokens, 0, rows, {absl::MakeSpan(&blocks[0], 1), absl::MakeSpan(&blocks[1], 1)}};
    double us[2];
    for (const bool overlaps : {false, true}) {
      step_->SetOverlapRows(overlaps ? rows : 0);
      step_->Run({&part, 1});
      us[overlaps] = Time([this] { step_->Repeat(); }, [] {});
    }
    if (us[1] >= us[0]) break;
    overlapping = rows;
  }
  step_->SetOverlapRows(overlapping);
}

std::string ProductTuner::Tune(double us) {
  if (device_->Time([] {}) < 0) return "";
  most_us_ = us;
  bool complete = true;
  for (int rows = 1; rows <= step_->most_rows() && complete; rows *= 2) {
    if (rows == 2 * DeviceStep::kGraphRows) TuneOverlap();
    complete = TuneRows(rows);
  }
  return "tilings of the device's products: chosen by " + std::to_string(measured_) +
         " measurements in " + std::to_string(static_cast<int>(spent_us_ / 1e3)) + " ms" +
         (complete ? "" : ", the last sizes by a table");
}

}  // namespace hearth
