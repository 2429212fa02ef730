#include "worker/model/invariant/invariant_self_test.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/reference.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {

namespace {

// Longer windows are tested up to this length, because the test would take longer than loading the
// model.
constexpr int kLongestWindow = 4096;
// Maximum rows for which the output matrix is tested. The engine needs logits for one row of each
// decoding sequence, and for the rows of speculated tokens.
constexpr int kHeadRows = 17;

// Number of outputs of the output matrix that are compared with the reference, at each of
// kHeadPlaces places.
constexpr int64_t kHeadOutputs = 200, kHeadPlaces = 4;

// Model number of the self-test's InvariantKv; the forward pass does not check the number.
constexpr uint64_t kNumber = 1;

// Maximum rows of one prompt in a step of several sequences; more rows are divided into several
// prompts.
constexpr int kPieceRows = 512;
// Maximum number of sequences that decode in one step, and maximum bytes of their blocks. Each
// sequence has one block in each of the two layers (2 MiB for Gemma 3 27B). The remaining rows are
// tested as prompts.
constexpr uint64_t kDecodesMax = 64, kDecodesMaxBytes = uint64_t{256} << 20;

// Returns all step sizes at which a kernel may change its method: sizes up to a few tiles, sizes
// around powers of two (typical chunk sizes), and `alone`, the maximum rows of a sequence alone.
std::vector<int> SizesUpTo(int rows, int alone) {
  std::set<int> sizes;
  for (int m = 1; m <= 17; ++m) sizes.insert(m);
  for (const int near : {32, 64, 128, 256}) {
    for (const int m : {near - 1, near, near + 1}) sizes.insert(m);
  }
  sizes.insert(alone);
  return {sizes.begin(), sizes.lower_bound(rows)};
}

// Returns the rows of each sequence in one step: decoding sequences between and after prefilling
// sequences. The sum of the rows is `together`.
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

std::vector<int> TestedLayers(const ModelConfig& config, KvLayout* layout) {
  std::vector<int> layers;
  layout->layers.clear();
  for (const bool local : {true, false}) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      if (config.is_local(layer) != local) continue;
      layers.push_back(layer);
      layout->layers.push_back(local ? LayerGroup::kLocal : LayerGroup::kGlobal);
      break;
    }
  }
  return layers;
}

int TestedRows(const ModelConfig& config, const KvLayout& layout) {
  const int chunk = static_cast<int>(layout.chunk_tokens);
  return std::min(std::min(config.attention.sliding_window, kLongestWindow) + chunk + 1,
                  config.max_position_embeddings);
}

InvariantSelfTest::InvariantSelfTest(const InvariantWeights& weights, const KvLayout& of_model,
                                     InvariantForward* forward, const StepLimits& limits)
    : weights_(weights), config_(weights.config()), forward_(forward) {
  auto layout = std::make_shared<KvLayout>(of_model);
  layers_ = TestedLayers(config_, layout.get());
  const int chunk = static_cast<int>(of_model.chunk_tokens);
  rows_ = TestedRows(config_, of_model);
  sizes_ = SizesUpTo(rows_, std::max(static_cast<int>(limits.alone), chunk));
  if (rows_ > 1) {
    const int decodes = DecodesTried(limits.decodes, of_model.SliceBytes(of_model.chunk_tokens));
    together_.resize(2);
    // Each sequence is at a different row, so that the test detects swapped sequences.
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
  // Drop no block, because each pass restarts in the middle.
  layout->window = static_cast<uint32_t>(rows_) + 1;
  int splits = 0;  // number of KV blocks for the largest step of several sequences
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

// The first pass records a digest of each row; later passes must compute the same digests.
void InvariantSelfTest::CheckRows(const char* operation, bool local, RowDigests digests) {
  const uint64_t number = operation_++ * static_cast<uint64_t>(rows_);
  for (const auto& [position, row] : checked_) {
    const uint64_t digest = digests(position, row);
    const auto expected = expected_.emplace(number + static_cast<uint64_t>(position), digest).first;
    if (!status_.ok() || expected->second == digest) continue;
    const std::string among = by_reference_ ? absl::StrCat("than the reference, ", AmongRows())
                                            : absl::StrCat(AmongRows(), " than among ", rows_);
    status_ = absl::FailedPreconditionError(
        absl::StrCat("the ", operation, " of a ", local ? "local" : "global",
                     " layer computes row ", position, " with different bits ", among));
  }
}

void InvariantSelfTest::CheckKeysAndValues() {
  const KvLayout& layout = kv_.layout();
  std::vector<std::byte> of_row(layout.PlainSliceBytes(1));
  for (size_t i = 0; i < layers_.size(); ++i) {
    CheckRows("keys and values", weights_.layer(layers_[i]).local, [&](int position, int /*row*/) {
      kv_.CopyOut(static_cast<int>(i), position, position + 1, position, 1, of_row.data());
      return SliceDigest(of_row.data(), of_row.size());
    });
  }
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
  checked_.clear();
  int first = 0;  // index in the step of the sequence's first row
  for (const auto& [begin, rows] : pieces) {
    for (const int row : {0, rows / 2, rows - 1}) checked_.emplace_back(begin + row, first + row);
    first += rows;
  }
  if (pieces[0].rows == rows_) {
    for (const int row : compared_) checked_.emplace_back(row, row);
  }
  if (pieces.size() > 1) return PassOfSequences(pieces);
  kv_.Rewind(pieces[0].begin);
  if (absl::Status room = kv_.MakeRoom(pieces[0].rows); !room.ok()) return room;
  const std::vector<int32_t> tokens = TokensOf(pieces[0]);
  if (absl::Status held = Layers({{&kv_, tokens}}); !held.ok()) return held;
  kv_.Advance(pieces[0].rows);
  CheckKeysAndValues();
  return status_;
}

// Each sequence gets separate blocks for the rows that it computes.
absl::Status InvariantSelfTest::PassOfSequences(const Pieces& pieces) {
  std::vector<InvariantKv> kvs;
  std::vector<std::vector<int32_t>> tokens;
  for (const Piece& piece : pieces) {
    kv_.Rewind(piece.begin);
    kvs.emplace_back(std::make_shared<KvLayout>(kv_.layout()), arena_.get(), kNumber);
    kvs.back().ShareAll(kv_);
    kvs.back().ReleaseRoom();
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
    forward_->SetObserver([&](const char* operation, const Rows& values, int64_t columns) {
      CheckRows(operation, layer.local,
                [&](int /*position*/, int row) { return RowDigest(values.Row(row), columns); });
    });
    KernelPhases list;
    if (i == 0) forward_->AddEmbedding(layer.input_norm, &list);
    forward_->RunList(&list);
    list.Clear();
    const bool last = i + 1 == layers_.size();
    const auto& next_norm =
        last ? weights_.final_norm() : weights_.layer(layers_[i + 1]).input_norm;
    forward_->AddWholeLayer(layer, static_cast<int>(i), next_norm, &list);
    forward_->RunList(&list);
  }
  forward_->SetObserver(nullptr);
  return status_;
}

absl::Status InvariantSelfTest::Head(const std::vector<float>& rows) {
  const int64_t hidden = config_.hidden_size, vocabulary = config_.vocab_size;
  const int64_t most = static_cast<int64_t>(rows.size()) / hidden;
  // Computes the logits of the last `count` rows: [count][vocabulary].
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
      return absl::FailedPreconditionError(absl::StrCat("the output matrix computes row ", row,
                                                        " with different bits among M = ", m,
                                                        " rows than among ", most));
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
    // The places are spread from the first outputs to the last outputs.
    const int64_t begin = (vocabulary - count) * place / (kHeadPlaces - 1);
    std::vector<float> want(static_cast<size_t>(count));
    reference::ProductRow(row, weights_.head(), begin, begin + count, want.data());
    for (float& value : want) {
      if (cap > 0) value = reference::Tanh(value / cap) * cap;
    }
    if (std::memcmp(want.data(), logits + begin, want.size() * sizeof(float)) == 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the output matrix computes outputs ", begin, " to ", begin + count,
                     " with different bits than the reference, with M = 1 row"));
  }
  return absl::OkStatus();
}

absl::Status InvariantSelfTest::Run() {
  const FloatMode mode;
  if (absl::Status first = Pass({{0, rows_}}); !first.ok()) return first;
  const Rows& normed = forward_->rows().normed;
  const std::vector<float> last(normed.Row(normed.rows - std::min(kHeadRows, rows_)),
                                normed.Row(normed.rows));
  for (const int m : sizes_) {
    if (absl::Status pass = Pass({{rows_ - m, m}}); !pass.ok()) return pass;
  }
  for (const Pieces& pieces : together_) {
    if (pieces.size() < 2) continue;
    if (absl::Status pass = Pass(pieces); !pass.ok()) return pass;
  }
  const KernelTarget target = ChosenTarget();
  ForceTarget(KernelTarget::kPlain);
  by_reference_ = true;
  const absl::Status defined = Pass({{rows_ - 1, 1}});
  ForceTarget(target);
  return defined.ok() ? Head(last) : defined;
}

namespace {

// Returns the model and the microcode revision of the first CPU, from /proc/cpuinfo.
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

std::string SelfTestFile(const std::string& cache_dir, const InvariantWeights& weights,
                         const KvLayout& layout, const StepLimits& limits) {
  const std::string program = ProgramFile();
  if (cache_dir.empty() || program.empty()) return "";
  const std::string key = DigestHex(Sha256(absl::StrCat(
      "hearth.self_test.v1\n", DigestHex(weights.digest()), " ", WeightFormName(weights.form()),
      weights.arithmetic() == Arithmetic::kFloat32
          ? ""
          : absl::StrCat(" ", ArithmeticName(weights.arithmetic()), " ",
                         IntegerKernelName(ChosenIntegerKernel())),
      "\n", InvariantGemma::kKernelsVersion, " ", layout.chunk_tokens, " ",
      KvDtypeName(layout.dtype), " ", limits.alone, " ", limits.together, " ", limits.decodes, " ",
      KernelTargetName(ChosenTarget()), "\n", program, "\n", CpuName())));
  return absl::StrCat(cache_dir, "/self-test-", key.substr(0, 32));
}

}  // namespace hearth
