#include "worker/model/weights_digest.h"

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

struct Leaf {
  const std::byte* data;
  size_t bytes;
};

// One line a file: whatever changes when its bytes may have changed.
absl::StatusOr<std::string> Identity(const std::vector<TensorView>& tensors,
                                     const std::vector<std::string>& files, absl::Time* newest) {
  std::string text = "hearth.weights.cache.v1\n";
  *newest = absl::InfinitePast();
  for (const std::string& file : files) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) {
      return absl::NotFoundError(absl::StrCat(file, ": cannot be read"));
    }
    absl::StrAppend(&text, "file ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                    absl::ToUnixNanos(absl::TimeFromTimespec(info.st_mtim)), " ",
                    absl::ToUnixNanos(absl::TimeFromTimespec(info.st_ctim)), "\n");
    *newest = std::max(*newest, absl::TimeFromTimespec(info.st_ctim));
  }
  // The config decides which tensors count (tied embeddings, for one).
  for (const TensorView& tensor : tensors) absl::StrAppend(&text, "tensor ", tensor.name, "\n");
  return text;
}

// The record of files with this identity: the digest, a check over it, the identity.
std::string RememberedText(absl::string_view digest_hex, const std::string& identity) {
  const std::string check = DigestHex(Sha256(absl::StrCat(digest_hex, "\n", identity)));
  return absl::StrCat(digest_hex, "\n", check, "\n", identity);
}

absl::StatusOr<Digest> ReadRemembered(const std::string& path, const std::string& identity) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const absl::string_view digest_hex = absl::string_view(text).substr(0, 2 * sizeof(Digest));
  if (text != RememberedText(digest_hex, identity)) return absl::NotFoundError("not remembered");
  return DigestFromHex(digest_hex);
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

Digest DigestOfTensors(const std::vector<TensorView>& tensors, ThreadPool* pool) {
  std::vector<Leaf> leaves;
  for (const TensorView& tensor : tensors) {
    for (size_t begin = 0; begin < tensor.bytes; begin += kLeafBytes) {
      leaves.push_back({tensor.data + begin, std::min(kLeafBytes, tensor.bytes - begin)});
    }
  }
  std::vector<Digest> digests(leaves.size());
  pool->Run(static_cast<int64_t>(leaves.size()), [&](int64_t i, int) {
    Hasher hasher("hearth.weights.leaf.v1");
    hasher.Bytes(leaves[i].data, leaves[i].bytes);
    digests[i] = hasher.Finish();
  });
  Hasher root("hearth.weights.v1");
  root.Number(tensors.size());
  size_t leaf = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    assert(i == 0 || tensors[i - 1].name < tensors[i].name);
    Hasher hasher("hearth.weights.tensor.v1");
    hasher.Text(tensors[i].name);
    hasher.Text(tensors[i].dtype_text);
    hasher.Number(tensors[i].shape.size());
    for (int64_t size : tensors[i].shape) hasher.Number(static_cast<uint64_t>(size));
    for (size_t begin = 0; begin < tensors[i].bytes; begin += kLeafBytes, ++leaf) {
      hasher.Bytes(digests[leaf].data(), digests[leaf].size());
    }
    const Digest digest = hasher.Finish();
    root.Bytes(digest.data(), digest.size());
  }
  assert(leaf == digests.size());
  return root.Finish();
}

absl::StatusOr<RememberedDigest> DigestOfFiles(const std::vector<TensorView>& tensors,
                                               const std::vector<std::string>& files,
                                               const std::string& cache_dir, absl::Time now,
                                               ThreadPool* pool) {
  absl::Time newest;
  absl::StatusOr<std::string> identity = Identity(tensors, files, &newest);
  if (!identity.ok()) return identity.status();
  const std::string path = absl::StrCat(cache_dir, "/", DigestHex(Sha256(*identity)), ".weights");
  if (!cache_dir.empty()) {
    absl::StatusOr<Digest> remembered = ReadRemembered(path, *identity);
    if (remembered.ok()) return RememberedDigest{*remembered, true};
  }
  RememberedDigest result{DigestOfTensors(tensors, pool), false};
  // Files that changed while they were hashed keep no digest.
  absl::StatusOr<std::string> after = Identity(tensors, files, &newest);
  if (!after.ok()) return after.status();
  if (*after != *identity) {
    return absl::AbortedError(absl::StrCat(files.front(), ": changed while it was read"));
  }
  if (!cache_dir.empty() && newest + kMinFileAge <= now) Remember(path, *identity, result.digest);
  return result;
}

}  // namespace hearth
