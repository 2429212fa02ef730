#include "worker/model/invariant/invariant_self_test.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/reference.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {

InvariantReference::InvariantReference(const LayerWeights& weights, const float* next_norm,
                                       ReferencePlace place, std::vector<float> x,
                                       std::vector<float> normed)
    : weights_(weights),
      next_norm_(next_norm),
      place_(std::move(place)),
      x_(std::move(x)),
      normed_(std::move(normed)) {}

bool InvariantReference::SameBits(const float* a, const float* b, int64_t count) {
  if (std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0) return true;
  for (int64_t i = 0; i < count; ++i) {
    const bool same = std::memcmp(&a[i], &b[i], sizeof(float)) == 0;
    if (!same && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

InvariantReference::Row InvariantReference::ProductOf(const Row& x, const PackedWeights& weights) {
  Row y(static_cast<size_t>(weights.outputs()));
  reference::ProductRow(x.data(), weights, 0, weights.outputs(), y.data());
  return y;
}

InvariantReference::Row InvariantReference::NormOf(const Row& x, const float* scale) const {
  Row y(x.size());
  reference::RmsNormRow(x.data(), static_cast<int64_t>(x.size()), scale, weights_.heads.epsilon,
                        y.data());
  return y;
}

// Of the queries and keys in `last_`.
void InvariantReference::NormAndRotate() {
  const QkvShape& shape = weights_.heads;
  for (int64_t head = 0; head < shape.heads + shape.kv_heads; ++head) {
    float* at = last_.data() + head * shape.head_dim;
    const float* scale = head < shape.heads ? shape.q_scale : shape.k_scale;
    reference::RmsNormRow(at, shape.head_dim, scale, shape.epsilon, at);
    reference::RotateRow(place_.token.cos, place_.token.sin, shape.head_dim / 2, at);
  }
}

bool InvariantReference::KeysAndValuesHold() const {
  const QkvShape& shape = weights_.heads;
  const QkvToken& token = place_.token;
  const float* keys = last_.data() + shape.heads * shape.head_dim;
  const float* values = keys + shape.kv_heads * shape.head_dim;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const int64_t from = head * shape.head_dim, at = head * token.head_stride;
    if (!SameBits(keys + from, token.keys + at, shape.head_dim) ||
        !SameBits(values + from, token.values + at, shape.head_dim)) {
      return false;
    }
  }
  return true;
}

InvariantReference::Row InvariantReference::Attention() const {
  const AttendShape& shape = weights_.attend;
  Row attended(static_cast<size_t>(shape.heads * shape.head_dim));
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t at = head * shape.head_dim;
    reference::AttendRow(shape, place_.blocks.data(), head / shape.sharers(), place_.position,
                         last_.data() + at, attended.data() + at);
  }
  return attended;
}

InvariantReference::Row InvariantReference::GeluOfGateTimesUp() const {
  Row gate = ProductOf(normed_, *weights_.gate);
  const Row up = ProductOf(normed_, *weights_.up);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = reference::Gelu(gate[i]) * up[i];
  return gate;
}

bool InvariantReference::Matches(const float* row, int64_t columns) {
  const auto sum = [this](const float* scale) {
    const Row more = NormOf(last_, scale);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = x_[i] + more[i];
    return x_;
  };
  bool kv_holds = true;
  switch (operation_++) {
    case 0:
      last_ = ProductOf(normed_, *weights_.qkv);
      break;
    case 1:
      NormAndRotate();
      kv_holds = KeysAndValuesHold();
      break;
    case 2:
      last_ = Attention();
      break;
    case 3:
      last_ = ProductOf(last_, *weights_.out);
      break;
    case 4:
      last_ = sum(weights_.post_attention_norm);
      break;
    case 5:
      last_ = normed_ = NormOf(x_, weights_.pre_feedforward_norm);
      break;
    case 6:
      last_ = GeluOfGateTimesUp();
      break;
    case 7:
      last_ = ProductOf(last_, *weights_.down);
      break;
    case 8:
      last_ = sum(weights_.post_feedforward_norm);
      break;
    default:
      last_ = normed_ = NormOf(x_, next_norm_);
  }
  return kv_holds && SameBits(last_.data(), row, columns);
}

namespace {

// A window longer than this is not slid past: the test would take longer than the load.
constexpr int kLongestWindow = 4096;
// Rows that the head takes at once; the engine asks for one of each sequence that decodes, and for
// those behind it that were guessed.
constexpr int kHeadRows = 17;

// The sizes whose first row goes through the references: tens of milliseconds each on the 270M.
constexpr size_t kReferenceRows = 2;
// Outputs of the head that go through the references, from each of kHeadPlaces places.
constexpr int64_t kHeadOutputs = 200, kHeadPlaces = 4;

// Of the model that the Kv here are of: the forward pass does not ask.
constexpr uint64_t kNumber = 1;

// Of a prompt beside others: where more are to be tried, there are several prompts.
constexpr int kPieceRows = 512;
// Of sequences that decode in one step, and the bytes of their blocks: each has one of its own for
// either layer, 2 MiB of a 27B. More rows than these are tried as prompts.
constexpr uint64_t kDecodesMax = 64, kDecodesMaxBytes = uint64_t{256} << 20;

// Each size at which a kernel may change its method: those below a few tiles, those about a power
// of two, as most chunks are, and the most rows of a sequence that is alone.
std::vector<int> SizesUpTo(int rows, int alone) {
  std::set<int> sizes;
  for (int m = 1; m <= 17; ++m) sizes.insert(m);
  for (const int near : {32, 64, 128, 256}) {
    for (const int m : {near - 1, near, near + 1}) sizes.insert(m);
  }
  sizes.insert(alone);
  return {sizes.begin(), sizes.lower_bound(rows)};
}

// The rows of the sequences of one step: two that decode, and some that prefill between and behind
// them, until there are `together`.
std::vector<int> SequenceRows(int rows, int chunk, int together) {
  std::vector<int> sequences;
  for (const int m : {1, 17, std::min(chunk, kPieceRows), 1, 3}) {
    if (m >= rows) continue;
    sequences.push_back(m);
    together -= m;
  }
  for (; together > 0; together -= sequences.back()) {
    sequences.push_back(std::min({together, kPieceRows, rows - 1}));
  }
  return sequences;
}

uint64_t RowDigest(const float* row, int64_t columns) {
  return SliceDigest(row, static_cast<size_t>(columns) * sizeof(float));
}

}  // namespace

InvariantSelfTest::InvariantSelfTest(const InvariantWeights& weights, const KvLayout& of_model,
                                     InvariantForward* forward, const StepLimits& limits)
    : weights_(weights), config_(weights.config()), forward_(forward) {
  auto layout = std::make_shared<KvLayout>(of_model);
  layout->layers.clear();
  for (const bool local : {true, false}) {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      if (config_.is_local(layer) != local) continue;
      layers_.push_back(layer);
      layout->layers.push_back(local ? LayerGroup::kLocal : LayerGroup::kGlobal);
      break;
    }
  }
  const int chunk = static_cast<int>(of_model.chunk_tokens);
  rows_ = std::min(std::min(config_.attention.sliding_window, kLongestWindow) + chunk + 1,
                   config_.max_position_embeddings);
  sizes_ = SizesUpTo(rows_, std::max(static_cast<int>(limits.alone), chunk));
  if (rows_ > 1) {
    const int decodes = DecodesTried(limits.decodes, of_model.SliceBytes(of_model.chunk_tokens));
    together_.resize(2);
    // Each at another row: equal ones would hide that one is taken for another.
    for (int i = 0; i < std::min(decodes, rows_ - 1); ++i) {
      together_[0].push_back({rows_ - 1 - i, 1});
    }
    for (const int m : SequenceRows(rows_, chunk, static_cast<int>(limits.together))) {
      together_[1].push_back({rows_ - m, m});
    }
  }
  const auto compare = [&](const Piece& piece) {
    for (const int row : {0, piece.rows / 2, piece.rows - 1}) compared_.insert(piece.begin + row);
  };
  for (const int m : sizes_) compare({rows_ - m, m});
  // Nothing is dropped: each pass begins again in the middle.
  layout->window = static_cast<uint32_t>(rows_) + 1;
  int splits = 0;  // of one step beside those of all rows
  for (const Pieces& pieces : together_) {
    int more = 0;
    for (const Piece& piece : pieces) {
      compare(piece);
      more += piece.rows / chunk + 2;
    }
    splits = std::max(splits, more);
  }
  splits += rows_ / chunk + 1;
  arena_ = std::make_unique<KvBlocks>(static_cast<uint64_t>(splits) * layers_.size() *
                                      layout->SliceBytes(layout->chunk_tokens));
  kv_ = InvariantKv(std::move(layout), arena_.get(), kNumber);
}

int InvariantSelfTest::DecodesTried(uint32_t decodes, uint64_t slice_bytes) {
  const uint64_t fit = kDecodesMaxBytes / (2 * slice_bytes);
  return static_cast<int>(std::min({uint64_t{decodes}, kDecodesMax, fit}));
}

std::string InvariantSelfTest::AmongRows() const {
  int rows = 0;
  for (const Piece& piece : pieces_) rows += piece.rows;
  std::string text = absl::StrCat("among M = ", rows, " rows");
  if (pieces_.size() > 1) absl::StrAppend(&text, " of ", pieces_.size(), " sequences");
  return text;
}

void InvariantSelfTest::Remember(const Rows& values, int64_t columns, uint64_t number) {
  for (const int row : compared_) {
    expected_[number * static_cast<uint64_t>(rows_) + static_cast<uint64_t>(row)] =
        RowDigest(values.Row(row), columns);
  }
}

void InvariantSelfTest::See(const char* operation, const Rows& values, int64_t columns,
                            bool local) {
  const uint64_t number = operation_++;
  if (!status_.ok()) return;
  if (pieces_[0].rows == rows_) return Remember(values, columns, number);
  const char* kind = local ? "local" : "global";
  int first = 0;  // row of the step that the sequence begins at
  for (const auto& [begin, rows] : pieces_) {
    for (const int row : {0, rows / 2, rows - 1}) {
      const auto position = static_cast<uint64_t>(begin + row);
      if (RowDigest(values.Row(first + row), columns) ==
          expected_.at(number * static_cast<uint64_t>(rows_) + position)) {
        continue;
      }
      status_ = absl::FailedPreconditionError(
          absl::StrCat("the ", operation, " of a ", kind, " layer gives row ", position,
                       " other bits ", AmongRows(), " than among ", rows_));
      return;
    }
    first += rows;
  }
  if (!reference_.has_value() || reference_->Matches(values.Row(0), columns)) return;
  status_ = absl::FailedPreconditionError(
      absl::StrCat("the ", operation, " of a ", kind, " layer gives row ", pieces_[0].begin,
                   " other bits than it is defined by, ", AmongRows()));
}

std::vector<int32_t> InvariantSelfTest::TokensOf(const Piece& piece) const {
  std::vector<int32_t> tokens;
  for (int i = 0; i < piece.rows; ++i) {
    tokens.push_back(SpreadToken(piece.begin + i, config_.vocab_size));
  }
  return tokens;
}

absl::Status InvariantSelfTest::Pass(const Pieces& pieces) {
  ++passes_;
  pieces_ = pieces;
  if (pieces.size() > 1) return PassOfSequences(pieces);
  kv_.Rewind(pieces[0].begin);
  if (absl::Status room = kv_.MakeRoom(pieces[0].rows); !room.ok()) return room;
  const std::vector<int32_t> tokens = TokensOf(pieces[0]);
  const absl::Status held = Layers({{&kv_, tokens}});
  kv_.Advance(pieces[0].rows);
  return held;
}

// Each has blocks of its own from its first row on.
absl::Status InvariantSelfTest::PassOfSequences(const Pieces& pieces) {
  std::vector<InvariantKv> kvs;
  std::vector<std::vector<int32_t>> tokens;
  for (const Piece& piece : pieces) {
    kv_.Rewind(piece.begin);
    kvs.emplace_back(std::make_shared<KvLayout>(kv_.layout()), arena_.get(), kNumber);
    kvs.back().ShareAll(kv_);
    kvs.back().GiveBackRoom();
    if (absl::Status room = kvs.back().MakeRoom(piece.rows); !room.ok()) return room;
    tokens.push_back(TokensOf(piece));
  }
  kv_.Rewind(rows_);
  std::vector<InvariantPart> parts;
  for (size_t i = 0; i < kvs.size(); ++i) parts.push_back({&kvs[i], tokens[i]});
  return Layers(parts);
}

absl::Status InvariantSelfTest::Layers(const std::vector<InvariantPart>& parts) {
  operation_ = 0;
  forward_->Begin(parts);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const InvariantLayer& layer = weights_.layer(layers_[i]);
    forward_->SetWitness([&](const char* operation, const Rows& values, int64_t columns) {
      See(operation, values, columns, layer.local);
    });
    KernelPhases list;
    if (i == 0) forward_->AddEmbedding(layer.input_norm, &list);
    forward_->RunList(&list);
    list.Clear();
    const bool last = i + 1 == layers_.size();
    const auto& next_norm =
        last ? weights_.final_norm() : weights_.layer(layers_[i + 1]).input_norm;
    const int number = static_cast<int>(i);
    forward_->AddWholeLayer(layer, number, next_norm, &list);
    if (parts.size() == 1 && parts[0].tokens.size() <= kReferenceRows) {
      reference_.emplace(ReferenceOf(layer, number, pieces_[0].begin, next_norm));
    }
    forward_->RunList(&list);
    reference_.reset();
  }
  forward_->SetWitness(nullptr);
  return status_;
}

InvariantReference InvariantSelfTest::ReferenceOf(const InvariantLayer& layer, int number,
                                                  int begin, const std::vector<float>& next_norm) {
  const LayerRows& rows = forward_->rows();
  const int64_t hidden = config_.hidden_size;
  const RopeTable& rope = forward_->RopeOf(layer);
  const KvLayout& layout = kv_.layout();
  const int64_t chunk = layout.chunk_tokens, dim = layout.head_dim;
  float* keys = reinterpret_cast<float*>(kv_.SliceAt(number, begin)) + begin % chunk * dim;
  ReferencePlace place{begin,
                       {rope.Cos(begin, 1).data, rope.Sin(begin, 1).data, keys,
                        keys + layout.kv_heads * chunk * dim, chunk * dim},
                       kv_.SplitsOf(number)};
  return InvariantReference(forward_->WeightsOf(layer), next_norm.data(), std::move(place),
                            {rows.x.data, rows.x.data + hidden},
                            {rows.normed.data, rows.normed.data + hidden});
}

std::vector<float> InvariantSelfTest::LastRows(int64_t count) const {
  const Rows& normed = forward_->rows().normed;
  return {normed.Row(normed.rows - count), normed.Row(normed.rows)};
}

absl::Status InvariantSelfTest::Head(const std::vector<float>& rows) {
  const int64_t hidden = config_.hidden_size, vocabulary = config_.vocab_size;
  const int64_t most = static_cast<int64_t>(rows.size()) / hidden;
  // The logits of the last `count` rows.
  const auto logits_of = [&](int64_t count) {
    std::vector<float> logits(static_cast<size_t>(count * vocabulary));
    std::vector<float*> places;
    for (int64_t row = 0; row < count; ++row) places.push_back(logits.data() + row * vocabulary);
    KernelPhases list;
    forward_->AddHead({rows.data() + (most - count) * hidden, count, hidden}, places, &list);
    forward_->RunList(&list);
    return logits;
  };
  const std::vector<float> all = logits_of(most);
  for (int64_t m = 1; m < most; m = m < 3 ? m + 1 : m * 2) {
    const std::vector<float> some = logits_of(m);
    for (const int64_t row : {int64_t{0}, m / 2, m - 1}) {
      if (RowDigest(some.data() + row * vocabulary, vocabulary) ==
          RowDigest(all.data() + (most - m + row) * vocabulary, vocabulary)) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "the head gives row ", row, " other bits among M = ", m, " rows than among ", most));
    }
    if (m > 1) continue;
    absl::Status held = HeadByReference(rows.data() + (most - 1) * hidden, some.data());
    if (!held.ok()) return held;
  }
  return absl::OkStatus();
}

absl::Status InvariantSelfTest::HeadByReference(const float* row, const float* logits) const {
  const int64_t vocabulary = config_.vocab_size;
  const float cap = static_cast<float>(config_.final_logit_softcap);
  const int64_t count = std::min(kHeadOutputs, vocabulary);
  for (int64_t place = 0; place < kHeadPlaces; ++place) {
    // From the first outputs to the last.
    const int64_t begin = (vocabulary - count) * place / (kHeadPlaces - 1);
    std::vector<float> want(static_cast<size_t>(count));
    reference::ProductRow(row, weights_.head(), begin, begin + count, want.data());
    for (float& value : want) {
      if (cap > 0) value = reference::Tanh(value / cap) * cap;
    }
    if (InvariantReference::SameBits(want.data(), logits + begin, count)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the head gives outputs ", begin, " to ", begin + count,
                     " other bits than it is defined by, with M = 1 row"));
  }
  return absl::OkStatus();
}

absl::Status InvariantSelfTest::Run() {
  const FloatMode mode;
  if (absl::Status first = Pass({{0, rows_}}); !first.ok()) return first;
  const std::vector<float> last = LastRows(std::min(kHeadRows, rows_));
  for (const int m : sizes_) {
    if (absl::Status pass = Pass({{rows_ - m, m}}); !pass.ok()) return pass;
  }
  for (const Pieces& pieces : together_) {
    if (pieces.size() < 2) continue;
    if (absl::Status pass = Pass(pieces); !pass.ok()) return pass;
  }
  return Head(last);
}

namespace {

// Name and revision, as the system tells them of the first one.
std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  std::string name;
  for (std::string line; std::getline(info, line) && !line.empty();) {
    for (const char* field : {"vendor_id", "cpu family", "model", "stepping", "microcode"}) {
      if (absl::StartsWith(line, field)) absl::StrAppend(&name, line, "\n");
    }
  }
  return name;
}

std::string ProgramFile() {
  struct stat file = {};
  if (stat("/proc/self/exe", &file) != 0) return "";
  return absl::StrCat(file.st_dev, ".", file.st_ino, ".", file.st_size, ".", file.st_mtim.tv_sec,
                      ".", file.st_mtim.tv_nsec);
}

}  // namespace

SelfTestMemory::SelfTestMemory(const std::string& cache_dir, const Digest& weights, WeightForm form,
                               int64_t chunk, const StepLimits& limits) {
  const std::string program = ProgramFile();
  if (cache_dir.empty() || program.empty()) return;
  const std::string key = DigestHex(Sha256(absl::StrCat(
      "hearth.self_test.v1\n", DigestHex(weights), " ", WeightFormName(form), "\n",
      InvariantGemma::kKernelsVersion, " ", chunk, " ", limits.alone, " ", limits.together, " ",
      limits.decodes, " ", KernelTargetName(ChosenTarget()), "\n", program, "\n", CpuName())));
  file_ = absl::StrCat(cache_dir, "/self-test-", key.substr(0, 32));
}

bool SelfTestMemory::HasPassed() const {
  std::string word;
  return !file_.empty() && std::ifstream(file_) >> word && word == "held";
}

void SelfTestMemory::Remember() const {
  if (file_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(file_).parent_path(), ignored);
  std::ofstream(file_) << "held\n";
}

}  // namespace hearth
