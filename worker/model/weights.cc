#include "worker/model/weights.h"

#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "proto/digest.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/model/model_file.h"

namespace hearth {

namespace {

// Bytes of a tensor that are hashed as one piece: large enough that combining the digests costs
// little, and small enough that several threads can hash one tensor.
constexpr size_t kLeafBytes = size_t{4} << 20;

constexpr char kEmbedding[] = "embed_tokens.weight", kHead[] = "lm_head.weight";

// Removes the module names before the tensor's name in the text model: the prefixes of
// transformers' classes, of PEFT ("base_model."), of torch.compile and of distributed training.
absl::string_view BareName(absl::string_view name) {
  constexpr absl::string_view kHolders[] = {"model.", "language_model.", "base_model.", "module.",
                                            "_orig_mod."};
  for (size_t i = 0; i < std::size(kHolders);)
    i = absl::ConsumePrefix(&name, kHolders[i]) ? 0 : i + 1;
  return name;
}

bool StartsWithAny(absl::string_view name, std::initializer_list<absl::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [name](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

// Takes tensors from a checkpoint by canonical name, and records the first error.
class Finder {
 public:
  explicit Finder(const TensorFiles& files) : files_(files) {
    for (const auto& [name, view] : files.tensors()) {
      const auto [other, is_new] = rest_.emplace(BareName(name), &view);
      if (is_new) continue;
      Refuse(absl::StrCat(view.file, ": tensors ", other->second->name, " and ", name,
                          " are both the tensor ", other->first, " of the text model; remove one"));
    }
  }

  void Take(const std::string& name, std::vector<int64_t> shape, TensorView* out) {
    const TensorView* view = Remove(name);
    if (view == nullptr) {
      return Refuse(absl::StrCat(files_.files().front()->path, ": tensor ",
                                 name == kHead ? "" : "model.", name, " is missing"));
    }
    if (view->shape != shape) {
      return Refuse(absl::StrCat(view->file, ": tensor ", view->name, " has shape ",
                                 view->ShapeText(), "; the config requires [",
                                 absl::StrJoin(shape, ", "), "]"));
    }
    status_.Update(CheckDtype(*view));
    *out = *view;
    out->name = name;
    used_.push_back(*out);
  }
  // Returns null if the checkpoint has no such tensor, or if Take or Remove has removed it.
  const TensorView* Find(const std::string& name) const {
    const auto found = rest_.find(name);
    return found == rest_.end() ? nullptr : found->second;
  }
  const TensorView* Remove(const std::string& name) {
    const TensorView* view = Find(name);
    rest_.erase(name);
    return view;
  }
  void Rename(const std::string& from, const std::string& to) {
    if (const TensorView* view = Remove(from)) rest_[to] = view;
  }
  void Refuse(const std::string& message) { status_.Update(absl::InvalidArgumentError(message)); }
  const absl::Status& status() const { return status_; }
  std::vector<TensorView> TakeUsed() { return std::move(used_); }
  // The tensors that have not been taken, by canonical name.
  const std::map<std::string, const TensorView*>& rest() const { return rest_; }

 private:
  const TensorFiles& files_;
  std::map<std::string, const TensorView*> rest_;
  std::vector<TensorView> used_;
  absl::Status status_;
};

void TakeLayer(Finder* finder, const ModelConfig& config, int layer, LayerTensors* out) {
  const std::string base = absl::StrCat("layers.", layer, ".");
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const AttentionConfig& attention = config.attention;
  const int64_t queries = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t keys = int64_t{attention.num_kv_heads} * attention.head_dim;
  finder->Take(base + "input_layernorm.weight", {hidden}, &out->input_norm);
  finder->Take(base + "self_attn.q_proj.weight", {queries, hidden}, &out->q);
  finder->Take(base + "self_attn.k_proj.weight", {keys, hidden}, &out->k);
  finder->Take(base + "self_attn.v_proj.weight", {keys, hidden}, &out->v);
  finder->Take(base + "self_attn.q_norm.weight", {attention.head_dim}, &out->q_norm);
  finder->Take(base + "self_attn.k_norm.weight", {attention.head_dim}, &out->k_norm);
  finder->Take(base + "self_attn.o_proj.weight", {hidden, queries}, &out->o);
  finder->Take(base + "post_attention_layernorm.weight", {hidden}, &out->post_attention_norm);
  finder->Take(base + "pre_feedforward_layernorm.weight", {hidden}, &out->pre_feedforward_norm);
  finder->Take(base + "mlp.gate_proj.weight", {inner, hidden}, &out->gate);
  finder->Take(base + "mlp.up_proj.weight", {inner, hidden}, &out->up);
  finder->Take(base + "mlp.down_proj.weight", {hidden, inner}, &out->down);
  finder->Take(base + "post_feedforward_layernorm.weight", {hidden}, &out->post_feedforward_norm);
}

// Returns whether two tensors have the same bytes. If a read fails, returns false; loading the
// tensor then reports the error.
bool AreEqual(const TensorView& a, const TensorView& b) {
  if (a.type != b.type || a.bytes != b.bytes) return false;
  std::vector<char> of_a(kLeafBytes), of_b(kLeafBytes);
  for (size_t at = 0; at < a.bytes; at += kLeafBytes) {
    const size_t bytes = std::min(kLeafBytes, a.bytes - at);
    if (!ReadAt(a.fd, a.offset + at, bytes, of_a.data()) ||
        !ReadAt(b.fd, b.offset + at, bytes, of_b.data()) ||
        std::memcmp(of_a.data(), of_b.data(), bytes) != 0) {
      return false;
    }
  }
  return true;
}

// Takes the output matrix (lm_head). With tied weights it is the embedding, unless the file has an
// lm_head with other values.
void TakeHead(const ModelConfig& config, Finder* finder, ModelTensors* result) {
  result->tied = config.tie_word_embeddings;
  const TensorView* head = finder->Find(kHead);
  if (result->tied && head != nullptr && head->shape == result->embedding.shape) {
    result->tied = AreEqual(*head, result->embedding);
    result->notes.push_back(
        absl::StrCat("tensor ", head->name,
                     result->tied ? " is ignored: it equals the embedding"
                                  : " is used: the config ties it to the embedding, but its "
                                    "values differ"));
    if (result->tied) finder->Remove(kHead);
  }
  result->head = result->embedding;
  if (!result->tied) finder->Take(kHead, {config.vocab_size, config.hidden_size}, &result->head);
}

// Returns an error if the text model has a tensor that was not taken, because checkpoint and config
// disagree. All other tensors, and rotary frequencies in old files, have no effect; they are only
// mentioned in notes.
absl::Status CheckRest(const Finder& finder, std::vector<std::string>* notes) {
  constexpr size_t kShown = 5;
  int vision = 0;
  std::vector<absl::string_view> unused;
  for (const auto& [name, view] : finder.rest()) {
    if (StartsWithAny(name, {"vision_tower.", "multi_modal_projector.", "v.", "mm."})) {
      ++vision;  // prefixes "v." and "mm.": vision tensors in Ollama's files
    } else if (StartsWithAny(name, {"layers.", "embed_tokens.", "norm.", "lm_head."}) &&
               !absl::EndsWith(name, "rotary_emb.inv_freq")) {
      return absl::InvalidArgumentError(absl::StrCat(view->file, ": tensor ", view->name,
                                                     " is not part of the model in config.json"));
    } else {
      unused.push_back(view->name);
    }
  }
  if (vision > 0) notes->push_back(absl::StrCat(vision, " vision tensors are ignored: text only"));
  if (!unused.empty()) {
    const size_t shown = std::min(unused.size(), kShown);
    notes->push_back(
        absl::StrCat("tensors outside the text model are ignored (", unused.size(),
                     "): ", absl::StrJoin(unused.begin(), unused.begin() + shown, ", "),
                     shown < unused.size() ? ", ..." : ""));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorView*> LayerTensors::All() {
  return {&input_norm,
          &q,
          &k,
          &v,
          &q_norm,
          &k_norm,
          &o,
          &post_attention_norm,
          &gate,
          &pre_feedforward_norm,
          &up,
          &down,
          &post_feedforward_norm};
}

absl::StatusOr<ModelTensors> FindTensors(const TensorFiles& files, const ModelConfig& config) {
  Finder finder(files);
  ModelTensors result;
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  // The function save_model of safetensors writes only one of two tied tensors: the first by name.
  if (config.tie_word_embeddings && finder.Find(kEmbedding) == nullptr)
    finder.Rename(kHead, kEmbedding);
  finder.Take(kEmbedding, {vocab, hidden}, &result.embedding);
  finder.Take("norm.weight", {hidden}, &result.final_norm);
  result.layers.resize(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    TakeLayer(&finder, config, layer, &result.layers[layer]);
  }
  TakeHead(config, &finder, &result);
  if (!finder.status().ok()) return finder.status();
  if (absl::Status s = CheckRest(finder, &result.notes); !s.ok()) return s;
  result.used = finder.TakeUsed();
  std::sort(result.used.begin(), result.used.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return result;
}

namespace {

constexpr absl::Duration kMinFileAge = absl::Seconds(2);

// Computes SHA-256 over a sequence of fields.
class Hasher {
 public:
  explicit Hasher(absl::string_view tag) { Text(tag); }
  void Bytes(absl::string_view bytes) { stream_.Add(bytes); }
  void Number(uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    Bytes({reinterpret_cast<const char*>(bytes), sizeof(bytes)});
  }
  void Text(absl::string_view text) {
    Number(text.size());
    Bytes(text);
  }
  Digest Finish() const { return stream_.SoFar(); }

 private:
  Sha256Stream stream_;
};

// Returns one line for a file: the metadata that changes whenever the file's bytes may have
// changed.
std::string StampText(const struct stat& info) {
  return absl::StrCat("file ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                      absl::ToUnixNanos(absl::TimeFromTimespec(info.st_mtim)), " ",
                      absl::ToUnixNanos(absl::TimeFromTimespec(info.st_ctim)), "\n");
}

std::string IdentityOf(const TensorFiles& files, const std::vector<TensorView>& tensors) {
  std::string text = "hearth.weights.cache.v1\n";
  for (const auto& file : files.files()) absl::StrAppend(&text, StampText(file->opened));
  // The digest covers only the tensors that the config selects, for example with tied embeddings.
  for (const TensorView& tensor : tensors) absl::StrAppend(&text, "tensor ", tensor.name, "\n");
  return text;
}

// Returns the text of a cache record: the digest, a checksum of the record, the identity of the
// files.
std::string RememberedText(absl::string_view digest_hex, const std::string& identity) {
  const std::string check = DigestHex(Sha256(absl::StrCat(digest_hex, "\n", identity)));
  return absl::StrCat(digest_hex, "\n", check, "\n", identity);
}

std::optional<Digest> ReadRemembered(const std::string& path, const std::string& identity) {
  // Read one byte more than a record has, so that a longer file does not match.
  const size_t bytes = RememberedText(std::string(2 * sizeof(Digest), '0'), identity).size();
  const absl::StatusOr<std::string> text = ReadModelFile(path, bytes + 1);
  if (!text.ok()) return std::nullopt;
  const absl::string_view digest_hex = absl::string_view(*text).substr(0, 2 * sizeof(Digest));
  if (*text != RememberedText(digest_hex, identity)) return std::nullopt;
  const absl::StatusOr<Digest> digest = DigestFromHex(digest_hex);
  return digest.ok() ? std::optional<Digest>(*digest) : std::nullopt;
}

}  // namespace

WeightsReader::WeightsReader(const TensorFiles& files, const std::vector<TensorView>& tensors,
                             const std::string& cache_dir, ThreadPool* pool)
    : files_(files), tensors_(tensors), pool_(pool), identity_(IdentityOf(files, tensors)) {
  if (cache_dir.empty()) return;
  path_ = absl::StrCat(cache_dir, "/", DigestHex(Sha256(identity_)), ".weights");
  remembered_ = ReadRemembered(path_, identity_);
}

absl::Status WeightsReader::Read(absl::Span<TensorView* const> tensors) {
  struct Leaf {
    const TensorView* tensor;
    size_t begin, bytes;
    std::byte* to;
    bool is_read;
    Digest digest;
  };
  std::vector<Leaf> leaves;
  for (TensorView* tensor : tensors) {
    const std::shared_ptr<std::byte> data = AllocateKernelBytes(tensor->bytes);
    for (size_t begin = 0; begin < tensor->bytes; begin += kLeafBytes) {
      const size_t bytes = std::min(kLeafBytes, tensor->bytes - begin);
      leaves.push_back({tensor, begin, bytes, data.get() + begin, false, {}});
    }
    tensor->data = data;
  }
  pool_->Run(static_cast<int64_t>(leaves.size()), [&](int64_t i, int) {
    Leaf& leaf = leaves[static_cast<size_t>(i)];
    leaf.is_read = ReadAt(leaf.tensor->fd, leaf.tensor->offset + leaf.begin, leaf.bytes, leaf.to);
    if (!leaf.is_read || remembers()) return;
    Hasher hasher("hearth.weights.leaf.v1");
    hasher.Bytes({reinterpret_cast<const char*>(leaf.to), leaf.bytes});
    leaf.digest = hasher.Finish();
  });
  auto leaf = leaves.begin();
  for (const TensorView* tensor : tensors) {
    Hasher hasher("hearth.weights.tensor.v1");
    hasher.Text(tensor->name);
    hasher.Text(tensor->dtype_text);
    hasher.Number(tensor->shape.size());
    for (int64_t size : tensor->shape) hasher.Number(static_cast<uint64_t>(size));
    for (; leaf != leaves.end() && leaf->tensor == tensor; ++leaf) {
      if (!leaf->is_read) {
        return absl::DataLossError(absl::StrCat(tensor->file, ": tensor ", tensor->name,
                                                " cannot be read: the disk failed, or the file "
                                                "was changed while the model was loaded"));
      }
      hasher.Bytes(DigestBytes(leaf->digest));
    }
    digests_[tensor->name] = hasher.Finish();
  }
  return absl::OkStatus();
}

Digest WeightsReader::DigestOfAll() const {
  Hasher root("hearth.weights.v1");
  root.Number(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    assert(i == 0 || tensors_[i - 1].name < tensors_[i].name);
    const Digest& digest = digests_.at(tensors_[i].name);
    root.Bytes(DigestBytes(digest));
  }
  return root.Finish();
}

absl::StatusOr<Digest> WeightsReader::Finish(absl::Time now) {
  absl::Time newest = absl::InfinitePast();
  for (const auto& file : files_.files()) {
    struct stat info {};
    if (fstat(file->fd, &info) != 0 || StampText(info) != StampText(file->opened)) {
      return absl::AbortedError(
          absl::StrCat(file->path, ": changed while the model was loaded; start the worker again"));
    }
    newest = std::max(newest, absl::TimeFromTimespec(info.st_ctim));
  }
  if (remembers()) return *remembered_;
  const Digest digest = DigestOfAll();
  if (!path_.empty() && newest + kMinFileAge <= now) {
    WriteCacheFile(path_, RememberedText(DigestHex(digest), identity_));
  }
  return digest;
}

}  // namespace hearth
