#include "worker/model/weights_reader.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/model/model_file.h"

namespace hearth {
namespace {

// Large enough that the tree adds nothing, small enough to share one tensor among threads.
constexpr size_t kLeafBytes = size_t{4} << 20;
constexpr absl::Duration kMinFileAge = absl::Seconds(2);

// SHA-256 over a list of fields.
class Hasher {
 public:
  explicit Hasher(absl::string_view tag) : context_(EVP_MD_CTX_new()) {
    const int ok = EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
    assert(ok == 1);
    (void)ok;
    Text(tag);
  }
  ~Hasher() { EVP_MD_CTX_free(context_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Bytes(const void* data, size_t bytes) { EVP_DigestUpdate(context_, data, bytes); }
  void Number(uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    Bytes(bytes, sizeof(bytes));
  }
  void Text(absl::string_view text) {
    Number(text.size());
    Bytes(text.data(), text.size());
  }
  Digest Finish() {
    Digest digest;
    unsigned int bytes = 0;
    EVP_DigestFinal_ex(context_, digest.data(), &bytes);
    assert(bytes == digest.size());
    return digest;
  }

 private:
  EVP_MD_CTX* context_;
};

// One line a file: whatever changes when its bytes may have changed.
std::string StampText(const struct stat& info) {
  return absl::StrCat("file ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                      absl::ToUnixNanos(absl::TimeFromTimespec(info.st_mtim)), " ",
                      absl::ToUnixNanos(absl::TimeFromTimespec(info.st_ctim)), "\n");
}

std::string IdentityOf(const Safetensors& files, const std::vector<TensorView>& tensors) {
  std::string text = "hearth.weights.cache.v1\n";
  for (const auto& file : files.files()) absl::StrAppend(&text, StampText(file->opened));
  // The config decides which tensors count (tied embeddings, for one).
  for (const TensorView& tensor : tensors) absl::StrAppend(&text, "tensor ", tensor.name, "\n");
  return text;
}

// The record of files with this identity: the digest, a check over it, the identity.
std::string RememberedText(absl::string_view digest_hex, const std::string& identity) {
  const std::string check = DigestHex(Sha256(absl::StrCat(digest_hex, "\n", identity)));
  return absl::StrCat(digest_hex, "\n", check, "\n", identity);
}

std::optional<Digest> ReadRemembered(const std::string& path, const std::string& identity) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const absl::string_view digest_hex = absl::string_view(text).substr(0, 2 * sizeof(Digest));
  if (text != RememberedText(digest_hex, identity)) return std::nullopt;
  const absl::StatusOr<Digest> digest = DigestFromHex(digest_hex);
  return digest.ok() ? std::optional<Digest>(*digest) : std::nullopt;
}

// Whole or not at all: written beside its place and renamed.
void Remember(const std::string& path, const std::string& identity, const Digest& digest) {
  std::error_code ignored;  // a folder that cannot be made shows as a file that cannot be written
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << RememberedText(DigestHex(digest), identity);
    if (!out.flush()) {
      std::remove(temporary.c_str());
      return;
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) std::remove(temporary.c_str());
}

}  // namespace

WeightsReader::WeightsReader(const Safetensors& files, const std::vector<TensorView>& tensors,
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
    hasher.Bytes(leaf.to, leaf.bytes);
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
                                                " cannot be read: its disk fails, or the file "
                                                "was changed while the model was loaded"));
      }
      hasher.Bytes(leaf->digest.data(), leaf->digest.size());
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
    root.Bytes(digest.data(), digest.size());
  }
  return root.Finish();
}

absl::StatusOr<Digest> WeightsReader::Finish(absl::Time now) {
  absl::Time newest = absl::InfinitePast();
  for (const auto& file : files_.files()) {
    struct stat info {};
    if (fstat(file->fd, &info) != 0 || StampText(info) != StampText(file->opened)) {
      return absl::AbortedError(
          absl::StrCat(file->path, ": changed while the model was loaded: start again"));
    }
    newest = std::max(newest, absl::TimeFromTimespec(info.st_ctim));
  }
  if (remembers()) return *remembered_;
  const Digest digest = DigestOfAll();
  if (!path_.empty() && newest + kMinFileAge <= now) Remember(path_, identity_, digest);
  return digest;
}

}  // namespace hearth
