// Compares the forward pass of worker/device on a GPU with the CPU, bit for bit, and measures it.
//
//   device_step_bench digests MODEL DIGESTS [bf16]
//                                             compares logits, keys and values with DIGESTS, the
//                                             output of seeded_digests
//   device_step_bench tokens MODEL [bf16]     times steps of 1, 8 and 32 sequences, and kernels
//   device_step_bench prefill MODEL [bf16]    times prompts of 128, 2,048 and 8,192 tokens
//   device_step_bench bars MODEL [bf16]       times steps of 1 and 32 sequences and prompts, with
//                                             the tuning of a worker; 27B: 12 layers, times of 62
//                                             computed
//   device_step_bench tiny                    compares a tiny model with the emulation; for
//                                             compute-sanitizer
// MODEL: 270M, 1B or 4B; for bars also 12B or 27B. bf16: products in bfloat16 instead of float32.
// Each result is a line of JSON: {"row": ..., "unit": ..., "values": [...]}, or details in a form
// of their own.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/gpu/seeded_cases.h"
#include "bench/gpu/seeded_fill.h"
#include "tests/support/seeded_device_model.h"
#include "worker/device/cuda_device.h"
#include "worker/device/device_step.h"
#include "worker/device/emulated_device.h"
#include "worker/device/product_tuning.h"
#include "worker/device/program_list.h"
#include "worker/device/warpgroup_check.h"

namespace hearth {
namespace {

constexpr int kContext = 512;
constexpr int kLayersOf27B = 12;  // more would not fit in the memory of most GPUs
constexpr int kNotRun = 77;       // exit status, as in kit.py

using Place = std::pair<int, int>;  // index of the text, position of the token

void Row(const std::string& json) {
  std::printf("%s\n", json.c_str());
  std::fflush(stdout);
}

template <typename... Values>
std::string Text(const char* format, Values... values) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, values...)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, values...);
  return text;
}

// Returns a JSON string; a character that JSON escapes becomes '?'.
std::string JsonText(std::string text) {
  for (char& one : text) {
    if (one == '"' || one == '\\' || static_cast<unsigned char>(one) < ' ') one = '?';
  }
  return '"' + text + '"';
}

void Result(const std::string& row, const std::string& unit, double value) {
  Row(Text("{\"row\": \"%s\", \"unit\": \"%s\", \"values\": [%.4f]}", row.c_str(), unit.c_str(),
           value));
}

void Require(bool good, const std::string& what) {
  if (good) return;
  Row("{\"error\": " + JsonText(what) + "}");
  std::exit(1);
}

SeededGeometry GeometryOf(const std::string& name) {
  for (const SeededGeometry& one : {Gemma270M(), Gemma1B(), Gemma4B(), Gemma12B(),
                                    Gemma27B(kLayersOf27B), SeededCases()[0].geometry}) {
    if (one.name == name) return one;
  }
  Require(false, "no model " + name);
  return {};
}

double WholeOf27B() { return static_cast<double>(Gemma27B().layer_types.size()) / kLayersOf27B; }

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Measures the time of GPU work in microseconds, with CUDA events.
class Stopwatch {
 public:
  explicit Stopwatch(CudaDevice* device) : device_(device) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  double Time(const std::function<void()>& work) {
    const auto stream = static_cast<cudaStream_t>(device_->stream());
    cudaEventRecord(begin_, stream);
    work();
    cudaEventRecord(end_, stream);
    const cudaError_t code = cudaEventSynchronize(end_);
    Require(code == cudaSuccess && device_->error().empty(),
            device_->error() + " " + cudaGetErrorString(code));
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin_, end_);
    return milliseconds * 1e3;
  }
  // Returns the median time of `times` runs of the work. Before each run calls `before`, which is
  // not measured.
  double Median(
      int times, const std::function<void()>& work, const std::function<void()>& before = [] {}) {
    std::vector<double> all;
    for (int i = 0; i < times; ++i) {
      before();
      all.push_back(Time(work));
    }
    return MedianOf(all);
  }

 private:
  CudaDevice* const device_;
  cudaEvent_t begin_, end_;
};

// A sequence: the KV blocks of its global and local layers, and its length in tokens.
struct Sequence {
  std::array<std::vector<std::byte*>, 2> blocks;
  int length = 0;

  void Grow(Device* device, const DeviceShape& shape, int tokens) {
    for (int group = 0; group < 2; ++group) {
      const int64_t bytes = shape.LayersIn(group == 1) * shape.SliceBytes();
      auto& own = blocks[static_cast<size_t>(group)];
      while (static_cast<int>(own.size()) * shape.split < tokens) {
        void* memory = device->Allocate(static_cast<size_t>(std::max<int64_t>(bytes, 256)));
        Require(memory != nullptr, "no memory for keys and values");
        own.push_back(static_cast<std::byte*>(memory));
      }
    }
  }
  // Returns the entry of a device step that appends the next `tokens` tokens of `text` to this
  // sequence and computes the logits of the last `want` tokens.
  DevicePart Part(const std::vector<int32_t>& text, int tokens, int want) const {
    const absl::Span<const int32_t> next =
        absl::MakeSpan(text).subspan(static_cast<size_t>(length), static_cast<size_t>(tokens));
    return {next, length, want, {blocks[0], blocks[1]}};
  }
};

// The CPU's digests of a model.
struct Expected {
  std::map<Place, uint64_t> digests;
  bool kv_is_bf16 = false;
};

Expected ReadDigests(const std::string& path, const std::string& name) {
  Expected expected;
  std::ifstream file(path);
  std::string of, digest;
  int text, position;
  while (file >> of >> text >> position >> digest) {
    if (of != name) continue;
    if (text == kKvDtypeText) {
      expected.kv_is_bf16 = digest == "bfloat16";
    } else {
      expected.digests[{text, position}] = std::strtoull(digest.c_str(), nullptr, 16);
    }
  }
  Require(!expected.digests.empty(), path + " has no digests of " + name);
  return expected;
}

class Bench {
 public:
  // `bf16`: whether products and attention are in bfloat16, as keys and values must be. `form`:
  // that of quantized weights; their values are made up and all equal. The names of all results say
  // so.
  Bench(const SeededGeometry& geometry, int positions, bool bf16, bool kv_is_bf16,
        IntegerForm form = IntegerForm::kNone)
      : geometry_(geometry), watch_(&device_) {
    Require(device_.error().empty(), device_.error());
    model_ = MakeSeededModel(&device_, geometry, kSeededSplit, positions,
                             [&](const auto& rows, int inputs, bool is_pair) {
                               return NewMatrix(rows, inputs, is_pair, form);
                             });
    if (bf16) geometry_.name += ", bf16";
    if (form != IntegerForm::kNone) {
      geometry_.name += form == IntegerForm::kInt8 ? ", q8_0" : ", q4_0";
    }
    model_.multiplies_bf16 = bf16;
    model_.has_integers = form != IntegerForm::kNone;
    model_.shape.kv_is_bf16 = kv_is_bf16;
    step_ = std::make_unique<DeviceStep>(&device_, &model_, DeviceStepLimits());
    if (bf16 && device_.has_warpgroups()) {
      const int differing = DifferingWarpgroupOutputs(&device_);
      Result(geometry_.name + ": outputs of wgmma that differ from mma.sync's", "outputs",
             differing);
      step_->UseWarpgroups(differing == 0);
    }
    Finish();
  }

  void Digests(const SeededCase& one, const Expected& expected);
  void Tokens();
  void Prefill();
  void Bars(int longest);

 private:
  DeviceMatrix NewMatrix(const std::vector<SeededRows>& rows, int inputs, bool is_pair,
                         IntegerForm form) {
    DeviceMatrix made;
    if (form == IntegerForm::kNone) {
      made = FillSeededMatrix(&device_, rows, inputs, is_pair);
    } else {
      int outputs = 0;
      for (const SeededRows& one : rows) outputs += one.outputs;
      made = {nullptr, inputs, PaddedColumns(outputs), is_pair ? outputs / 2 : outputs, form};
      void* const memory = device_.Allocate(BytesOf(made));
      // each byte is an integer, or half a float16 of 0.0007
      if (memory != nullptr) cudaMemset(memory, 0x11, BytesOf(made));
      made.data = static_cast<const uint16_t*>(memory);
    }
    Require(made.data != nullptr, "no memory for weights");
    return made;
  }
  std::vector<Sequence> NewSequences(std::vector<std::vector<int32_t>>* texts);
  double Scaled(double us, int head_rows);
  void Finish() {  // waits for the device, and ends the program if a kernel failed
    device_.Wait();
    Require(device_.error().empty(), device_.error());
  }
  void CompareLogits(const char* how, const Expected& expected, const std::vector<Place>& places,
                     const float* logits);
  void CompareKv(const char* how, const Expected& expected, const Sequence& sequence);
  void Report(const char* how);
  void RunShapes(const Expected& expected, const std::vector<DevicePart>& parts,
                 const std::vector<Place>& places);

  void Tune(int rows);
  void ByKernel(int rows);
  void Clocks();

  SeededGeometry geometry_;
  CudaDevice device_;
  Stopwatch watch_;
  DeviceModel model_;
  std::unique_ptr<DeviceStep> step_;
  int compared_ = 0, differ_ = 0;
};

// --- bits ---

void Bench::CompareLogits(const char* how, const Expected& expected,
                          const std::vector<Place>& places, const float* logits) {
  const auto vocabulary = static_cast<size_t>(geometry_.vocabulary);
  for (size_t i = 0; i < places.size(); ++i) {
    const auto at = expected.digests.find(places[i]);
    Require(at != expected.digests.end(), "no digest for a text");
    const uint64_t digest = DigestOfBytes(logits + i * vocabulary, vocabulary * sizeof(float));
    ++compared_;
    if (digest == at->second) continue;
    if (++differ_ <= 3) {
      Row(Text(
          "{\"differs\": \"%s\", \"how\": \"%s\", \"text\": %d, \"position\": %d, \"first\": %g}",
          geometry_.name.c_str(), how, places[i].first, places[i].second,
          static_cast<double>(logits[i * vocabulary])));
    }
  }
}

void Bench::CompareKv(const char* how, const Expected& expected, const Sequence& sequence) {
  for (const int layer : KvLayers(geometry_)) {
    SeededKvDigest digest(geometry_, model_.shape.kv_is_bf16 ? 2 : 4);
    const bool is_global = model_.shape.is_global[static_cast<size_t>(layer)];
    std::vector<std::byte> slice(static_cast<size_t>(model_.shape.SliceBytes()));
    const auto& blocks = sequence.blocks[is_global];
    for (size_t split = 0; split < blocks.size(); ++split) {
      device_.CopyOut(slice.data(),
                      blocks[split] + model_.shape.LayersBefore(layer) * model_.shape.SliceBytes(),
                      slice.size());
      digest.Add(slice.data(), static_cast<int>(split), sequence.length);
    }
    ++compared_;
    const auto at = expected.digests.find({0, -layer - 1});
    if (at != expected.digests.end() && at->second == digest.value()) continue;
    ++differ_;
    Row(Text("{\"differs\": \"%s\", \"how\": \"%s\", \"kv of layer\": %d}", geometry_.name.c_str(),
             how, layer));
  }
}

void Bench::Report(const char* how) {
  Result(geometry_.name + ", " + how + ": results that differ from the CPU's",
         Text("of %d", compared_), differ_);
  compared_ = differ_ = 0;
}

void Bench::Digests(const SeededCase& one, const Expected& expected) {
  const auto vocabulary = static_cast<size_t>(geometry_.vocabulary);
  std::vector<std::vector<int32_t>> texts;
  for (size_t i = 0; i < one.lengths.size(); ++i) {
    texts.push_back(SeededText(one, static_cast<int>(i)));
  }
  std::vector<float> logits(32 * vocabulary);
  const int length = one.lengths[0], want = WantedOf(0);

  Sequence cold;
  cold.Grow(&device_, model_.shape, length);
  step_->Run({cold.Part(texts[0], length, want)}, logits.data());
  cold.length = length;
  std::vector<Place> places;
  for (int i = 0; i < want; ++i) places.push_back({0, length - want + i});
  CompareLogits("cold", expected, places, logits.data());
  CompareKv("cold", expected, cold);
  Report("cold");

  Sequence decoded;
  decoded.Grow(&device_, model_.shape, length);
  for (const int end : {200, 210, length - want}) {
    step_->Run({decoded.Part(texts[0], end - decoded.length, 0)});
    decoded.length = end;
  }
  for (; decoded.length < length; ++decoded.length) {
    step_->Run({decoded.Part(texts[0], 1, 1)}, logits.data());
    CompareLogits("decoded", expected, {{0, decoded.length}}, logits.data());
  }
  CompareKv("decoded", expected, decoded);
  Report("decoded");

  std::vector<Sequence> sequences(texts.size());
  std::vector<DevicePart> parts;
  for (size_t i = 0; i < texts.size(); ++i) {
    sequences[i].Grow(&device_, model_.shape, one.lengths[i]);
    parts.push_back(sequences[i].Part(texts[i], one.lengths[i] - 2, 0));
  }
  step_->Run(parts);
  for (int last = 2; last >= 1; --last) {
    parts.clear();
    places.clear();
    for (size_t i = 0; i < texts.size(); ++i) {
      sequences[i].length = one.lengths[i] - last;
      parts.push_back(sequences[i].Part(texts[i], 1, 1));
      places.push_back({static_cast<int>(i), sequences[i].length});
    }
    step_->Run(parts, logits.data());
    CompareLogits("among 31 others", expected, places, logits.data());
  }
  Report("among 31 others");
  // each number of rows has only one tiling in bfloat16
  if (!model_.multiplies_bf16) RunShapes(expected, parts, places);
}

// Runs a step of 32 sequences that each need the logits of one token, and a step of the first
// sequence alone, with every tile shape of the product kernel.
void Bench::RunShapes(const Expected& expected, const std::vector<DevicePart>& parts,
                      const std::vector<Place>& places) {
  std::vector<float> logits(32 * static_cast<size_t>(geometry_.vocabulary));
  for (int shape = 0; shape < ShapeCount(); ++shape) {
    if (!device_.CanRun(ProductNumber(shape, false))) {
      Row(Text("{\"shape\": %d, \"does not fit\": true}", shape));
      continue;
    }
    for (const int rows : {1, 32}) {
      ProductChoice choice = step_->ChoiceFor(rows);
      for (int& of : choice) of = shape;
      if (!FactsOf(shape).takes_pairs) choice[kGateUp] = step_->ChoiceFor(rows)[kGateUp];
      step_->SetChoice(rows, choice);
      step_->Run(absl::MakeSpan(parts).subspan(0, static_cast<size_t>(rows)), logits.data());
      // Compares at most four rows, because computing digests takes processor time.
      const std::vector<Place> some(places.begin(), places.begin() + std::min(rows, 4));
      CompareLogits(Text("shape %d", shape).c_str(), expected, some, logits.data());
    }
  }
  Report("every shape of product");
}

// --- times ---

// Chooses the tilings for steps of `rows` rows: for each product, the tiling that is fastest when
// the product runs alone.
void Bench::Tune(int rows) {
  const char* names[] = {"qkv", "out", "gate, up", "down", "head"};
  ProductTuner tuner(&device_, &model_, step_.get());
  ProductChoice best = step_->ChoiceFor(rows);
  for (const StepProduct product : {kQkv, kOut, kGateUp, kDown, kHead}) {
    if (product == kHead && rows > DeviceStep::kGraphRows) continue;
    const std::vector<TilingTime> times = tuner.TimesOf(product, rows);
    if (times.empty()) continue;
    std::string list;
    for (size_t i = 0; i < times.size() && i < 8; ++i) {
      list += Text("%s[%d, %.1f]", i == 0 ? "" : ", ", times[i].tiling, times[i].us);
    }
    const DeviceMatrix& matrix = step_->MatrixOf(product, 0);
    const double weights = 1.0 * matrix.inputs * matrix.columns;
    Row(
        Text("{\"tune\": \"%s\", \"product\": \"%s\", \"rows\": %d, \"inputs\": %d, \"columns\": "
             "%d, \"us by tiling\": [%s], \"TB/s\": %.2f, \"T FMA/s\": %.1f}",
             geometry_.name.c_str(), names[product], rows, matrix.inputs, matrix.columns,
             list.c_str(), 2 * weights / times[0].us / 1e6, weights * rows / times[0].us / 1e6));
    best[product] = times[0].tiling;
  }
  step_->SetChoice(rows, best);
}

void Bench::ByKernel(int rows) {
  std::vector<std::pair<std::string, cudaEvent_t>> marks;
  const auto stream = static_cast<cudaStream_t>(device_.stream());
  std::map<std::string, std::vector<double>> times;
  for (int round = 0; round < 2; ++round) {
    marks.clear();
    const auto mark = [&](const char* name, int) {
      cudaEvent_t event;
      cudaEventCreate(&event);
      cudaEventRecord(event, stream);
      marks.push_back({name, event});
    };
    step_->RunSlowly(mark);
    mark("end", 0);
    device_.Wait();
    if (round == 0) continue;
    for (size_t i = 0; i + 1 < marks.size(); ++i) {
      float milliseconds = 0;
      cudaEventElapsedTime(&milliseconds, marks[i].second, marks[i + 1].second);
      times[marks[i].first].push_back(milliseconds * 1e3);
    }
  }
  std::string list;
  double sum = 0;
  for (const auto& [name, all] : times) {
    const double median = MedianOf(all);
    sum += median * static_cast<double>(all.size());
    list += Text("%s\"%s\": %.2f", list.empty() ? "" : ", ", name.c_str(), median);
  }
  Row(Text(
      "{\"by kernel\": \"%s\", \"rows\": %d, \"us\": {%s}, \"launches\": %d, \"sum ms\": %.3f}",
      geometry_.name.c_str(), rows, list.c_str(), static_cast<int>(marks.size()) - 1, sum / 1e3));
}

// Prints clock rates, power and temperature of the GPU (from nvidia-smi) while steps run.
void Bench::Clocks() {
  std::atomic<bool> is_over = false;
  std::string samples;
  std::thread reader([&] {
    FILE* pipe = popen(
        "timeout 2 nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu "
        "--format=csv,noheader,nounits -lms 100 2>&1",
        "r");
    char line[100];
    for (int i = 0; i < 8 && pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr;
         ++i) {
      samples += (i == 0 ? "" : ", ") + JsonText(std::string(line, std::strcspn(line, "\n")));
    }
    if (pipe != nullptr) pclose(pipe);
    is_over = true;
  });
  int steps = 0;
  for (; !is_over; ++steps) {
    step_->Repeat();
    if (steps % 16 == 0) device_.Wait();
  }
  device_.Wait();
  reader.join();
  Row(Text("{\"under load\": \"%s\", \"steps\": %d, \"MHz, MHz of memory, W, degrees\": [%s]}",
           geometry_.name.c_str(), steps, samples.c_str()));
}

// Returns 32 sequences of kContext tokens, and the tokens of each and of its next step.
std::vector<Sequence> Bench::NewSequences(std::vector<std::vector<int32_t>>* texts) {
  std::vector<Sequence> all(32);
  for (int i = 0; i < 32; ++i) {
    texts->push_back(SeededTokens(i, kContext + 1, geometry_.vocabulary));
  }
  for (Sequence& one : all) one.Grow(&device_, model_.shape, kContext + 1);
  for (size_t first = 0; first < 32; first += 4) {
    std::vector<DevicePart> parts;
    for (size_t i = first; i < first + 4; ++i) {
      parts.push_back(all[i].Part((*texts)[i], kContext, 0));
    }
    step_->Run(parts);
    for (size_t i = first; i < first + 4; ++i) all[i].length = kContext;
  }
  Finish();
  return all;
}

// Returns the time of a step with the layers of the whole model: adds the missing layers of the
// 27B to a step whose output matrix computed `head_rows` rows.
double Bench::Scaled(double us, int head_rows) {
  if (model_.shape.layers() != kLayersOf27B) return us;
  ProductTuner tuner(&device_, &model_, step_.get());
  const std::vector<TilingTime> head = tuner.TimesOf(kHead, head_rows);
  return (us - head[0].us) * WholeOf27B() + head[0].us;
}

// Measures what has a bar in kit.py.
void Bench::Bars(int longest) {
  std::vector<std::vector<int32_t>> texts;
  const std::vector<Sequence> all = NewSequences(&texts);
  Row(Text("{\"tuned\": \"%s\"}", ProductTuner(&device_, &model_, step_.get()).Tune(5e5).c_str()));
  const char* name = geometry_.name.c_str();
  double bytes = 0;
  for (int layer = 0; layer < model_.shape.layers(); ++layer) {
    for (const StepProduct product : {kQkv, kOut, kGateUp, kDown}) {
      bytes += static_cast<double>(BytesOf(step_->MatrixOf(product, layer)));
    }
    const double seen = model_.shape.is_global[static_cast<size_t>(layer)]
                            ? kContext
                            : std::min(kContext, model_.shape.window);
    bytes += seen / model_.shape.split * static_cast<double>(model_.shape.SliceBytes());
  }
  if (model_.shape.layers() == kLayersOf27B) bytes *= WholeOf27B();
  bytes += static_cast<double>(BytesOf(model_.head));
  Result(Text("%s: bytes of a token", name), "GB", bytes / 1e9);
  for (const int rows : {1, 32}) {
    std::vector<DevicePart> parts;
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
      parts.push_back(all[i].Part(texts[i], 1, 1));
    }
    step_->Run(parts);
    device_.Wait();
    const double us = Scaled(watch_.Median(15, [this] { step_->Repeat(); }), rows);
    Result(Text("%s: tuned step of %d sequences", name, rows), "ms", us / 1e3);
    Result(Text("%s: rate of %d sequences", name, rows), "tokens/s", rows * 1e6 / us);
  }
  for (int length = 2048; length <= longest; length *= 16) {
    const std::vector<int32_t> text = SeededTokens(40, length, geometry_.vocabulary);
    Sequence sequence;
    sequence.Grow(&device_, model_.shape, length);
    const int rows = std::min(length, step_->most_rows());
    const auto work = [&] {
      for (sequence.length = 0; sequence.length < length; sequence.length += rows) {
        step_->Run({sequence.Part(text, rows, sequence.length + rows == length ? 1 : 0)});
      }
    };
    work();
    const double us = Scaled(watch_.Median(length > 2048 ? 1 : 3, work), 1);
    Result(Text("%s: tuned prefill of %d tokens", name, length), "ms", us / 1e3);
  }
}

void Bench::Tokens() {
  std::vector<std::vector<int32_t>> texts;
  const std::vector<Sequence> all = NewSequences(&texts);
  double alone = 0;
  for (const int rows : {1, 8, 32}) {
    std::vector<DevicePart> parts;
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
      parts.push_back(all[i].Part(texts[i], 1, 1));
    }
    double best = 0;
    for (const bool tuned : {false, true}) {
      if (tuned) Tune(rows);
      for (const bool overlap : {false, true}) {
        step_->SetOverlapRows(overlap ? rows : 0);
        step_->Run(parts);
        device_.Wait();
        const double us = watch_.Median(15, [this] { step_->Repeat(); });
        Result(Text("%s: a step of %d sequences, %s tilings, %s overlap", geometry_.name.c_str(),
                    rows, tuned ? "measured" : "chosen", overlap ? "with" : "without"),
               "ms", us / 1e3);
        if (rows == 1) alone = alone > 0 ? std::min(alone, us) : us;
        best = best > 0 ? std::min(best, us) : us;
      }
    }
    Result(Text("%s: throughput of %d sequences over one", geometry_.name.c_str(), rows), "times",
           rows * alone / best);
    step_->SetOverlapRows(8);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) {
      step_->Run(parts);
      device_.Wait();
    }
    const double wall =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 20;
    Result(Text("%s: a step of %d sequences and its table", geometry_.name.c_str(), rows), "ms",
           wall * 1e3);
    ByKernel(rows);
    if (rows == 1) Clocks();
  }
}

void Bench::Prefill() {
  for (const int length : {128, 2048, 8192}) {
    const std::vector<int32_t> text = SeededTokens(40, length, geometry_.vocabulary);
    Sequence sequence;
    sequence.Grow(&device_, model_.shape, length);
    const int rows = std::min(length, 4096);
    const auto work = [&] {
      for (sequence.length = 0; sequence.length < length; sequence.length += rows) {
        step_->Run({sequence.Part(text, rows, sequence.length + rows == length ? 1 : 0)});
      }
    };
    if (length == 128) work();  // warm-up run, not measured
    if (length <= 2048) Tune(rows);
    if (length > 2048) step_->SetChoice(rows, step_->ChoiceFor(2048));
    const double us = watch_.Median(length > 2048 ? 1 : 3, work);
    Result(Text("%s: prefill of %d tokens", geometry_.name.c_str(), length), "ms", us / 1e3);
    if (length <= 2048) ByKernel(rows);
  }
}

// --- a tiny model, on the GPU and emulated ---

// Returns a LoRA adapter for the queries and the gates of all layers.
std::vector<AdapterLayer> SeededAdapter(const SeededGeometry& geometry) {
  constexpr int kRank = 20;
  uint32_t seed = 1;
  const auto pack = [&seed](int outputs, int inputs) {
    const SeededMatrix seeded = {++seed, 0.125f};
    std::vector<uint16_t> values;
    for (int i = 0; i < outputs * inputs; ++i) {
      values.push_back(seeded.Weight(i / inputs, i % inputs));
    }
    const WeightRows rows = {values.data(), outputs, ElementType::kBFloat16};
    return PackedWeights::Pack({&rows, 1}, ElementType::kFloat32, inputs, InThisThread);
  };
  std::vector<AdapterLayer> layers(geometry.layer_types.size());
  for (AdapterLayer& layer : layers) {
    for (std::vector<LowRank>* pairs : {&layer.qkv, &layer.gate}) {
      const int outputs =
          pairs == &layer.gate ? geometry.intermediate : geometry.heads * geometry.head_dim;
      pairs->push_back({pack(kRank, geometry.hidden), pack(outputs, kRank), 2.0f, 0});
    }
  }
  return layers;
}

// Runs the same steps on both devices and compares all logits. `what`: plain, bf16, or adapter; one
// of two sequences then has an adapter.
void CompareTiny(EmulatedDevice* emulated, CudaDevice* cuda, const std::string& what) {
  const SeededGeometry geometry = {"tiny", "lg", 130, 4, 2, 64, 64, 128, 512, 512};
  std::vector<std::vector<float>> results;
  for (Device* device : {static_cast<Device*>(emulated), static_cast<Device*>(cuda)}) {
    DeviceModel model = MakeSeededModel(device, geometry, kSeededSplit, 512,
                                        [device](const auto& rows, int inputs, bool is_pair) {
                                          return MakeSeededMatrix(device, rows, inputs, is_pair);
                                        });
    model.multiplies_bf16 = model.shape.kv_is_bf16 = what == "bf16";
    DeviceStep step(device, &model, {256, 40, 512, 1024});
    const int adapter = what == "adapter" ? step.AddAdapter(SeededAdapter(geometry)) : -1;
    step.UseWarpgroups(cuda->has_warpgroups());
    std::vector<float> logits(100 * 512);
    float* to = logits.data();
    Sequence one, two;
    const std::vector<int32_t> text = SeededTokens(7, 200, geometry.vocabulary);
    const auto run = [&](const std::vector<std::pair<Sequence*, int>>& some) {
      std::vector<DevicePart> parts;
      for (const auto& [sequence, tokens] : some) {
        sequence->Grow(device, model.shape, sequence->length + tokens);
        parts.push_back(sequence->Part(text, tokens, 1));
        if (sequence == &two) parts.back().adapter = adapter;
      }
      step.Run(parts, to);
      to += some.size() * 512;
      for (const auto& [sequence, tokens] : some) sequence->length += tokens;
    };
    run({{&one, 135}});
    run({{&one, 1}});
    run({{&one, 1}, {&two, 3}});
    run({{&one, 2}, {&two, 40}});
    for (int i = 0; i < 3; ++i) run({{&one, 1}, {&two, 1}});
    results.push_back(std::move(logits));
  }
  Require(cuda->error().empty(), cuda->error());
  int differ = 0;
  for (size_t i = 0; i < results[0].size(); ++i) {
    differ += std::memcmp(&results[0][i], &results[1][i], sizeof(float)) != 0 ? 1 : 0;
  }
  Result("tiny model, " + what + ": logits that differ from the emulation's",
         Text("of %d", static_cast<int>(results[0].size())), differ);
}

void Tiny() {
  CudaDevice cuda;
  Require(cuda.error().empty(), cuda.error());
  EmulatedDevice emulated;
  CompareTiny(&emulated, &cuda, "plain");
  CompareTiny(&emulated, &cuda, "adapter");
  if (cuda.has_fused_dot()) CompareTiny(&emulated, &cuda, "bf16");
  for (int program = 0; program < ProgramList::kCount; ++program) {
    const CudaDevice::Facts facts = cuda.FactsOfProgram(program);
    if (facts.local_bytes > 0) {
      Row(Text("{\"program\": %d, \"spills\": %d}", program, facts.local_bytes));
    }
  }
}

}  // namespace

int Main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "", name = argc > 2 ? argv[2] : "";
  if (part == "tiny") {
    Tiny();
    return 0;
  }
  const bool bf16 = argc >= 4 && std::strcmp(argv[argc - 1], "bf16") == 0;
  if (part == "digests" && argc == (bf16 ? 5 : 4)) {
    for (const SeededCase& one : SeededCases(bf16)) {
      if (one.geometry.name != name) continue;
      if (bf16 && !CudaDevice().has_fused_dot()) {
        std::fprintf(stderr, "bf16 needs compute capability 9.0 or later\n");
        return kNotRun;
      }
      const Expected expected = ReadDigests(argv[3], DigestsName(one.geometry, bf16));
      Bench(one.geometry, 2048, bf16, expected.kv_is_bf16).Digests(one, expected);
      return 0;
    }
  }
  if (part == "tokens" && (argc == 3 || bf16)) {
    Bench(GeometryOf(name), 2048, bf16, bf16).Tokens();
    return 0;
  }
  if (part == "prefill" && (argc == 3 || bf16)) {
    Bench(GeometryOf(name), 8192 + 128, bf16, bf16).Prefill();
    return 0;
  }
  const std::string last = argv[argc - 1];
  const IntegerForm form = last == "q8_0"   ? IntegerForm::kInt8
                           : last == "q4_0" ? IntegerForm::kInt4
                                            : IntegerForm::kNone;
  const bool is_narrow = bf16 || form != IntegerForm::kNone;
  if (part == "bars" && argc == (is_narrow ? 4 : 3)) {
    const int longest = bf16 && name == "4B" ? 32768 : 2048;
    Bench(GeometryOf(name), longest + 128, bf16, is_narrow, form).Bars(longest);
    return 0;
  }
  std::fprintf(stderr,
               "usage: device_step_bench digests MODEL DIGESTS [bf16] | "
               "tokens MODEL [bf16] | prefill MODEL [bf16] | bars MODEL [bf16|q8_0|q4_0] | tiny\n");
  return 2;
}

}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
