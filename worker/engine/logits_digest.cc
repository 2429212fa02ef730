#include "worker/engine/logits_digest.h"

#include <openssl/evp.h>

#include <cstdlib>
#include <utility>

namespace hearth {

// OpenSSL fails here only when it has no SHA-256 at all; a digest of nothing must never be used.
struct LogitsDigest::Hash {
  Hash() : context(EVP_MD_CTX_new()) {
    if (context == nullptr || EVP_DigestInit_ex(context, EVP_sha256(), nullptr) != 1) std::abort();
  }
  ~Hash() { EVP_MD_CTX_free(context); }
  void Add(const std::vector<float>& row) {
    if (EVP_DigestUpdate(context, row.data(), row.size() * sizeof(float)) != 1) std::abort();
    if (++rows == 1) first = SoFar();
  }
  Digest SoFar() const {
    Digest digest;
    unsigned int bytes = 0;
    EVP_MD_CTX* copy = EVP_MD_CTX_new();
    if (copy == nullptr || EVP_MD_CTX_copy_ex(copy, context) != 1 ||
        EVP_DigestFinal_ex(copy, digest.data(), &bytes) != 1 || bytes != digest.size()) {
      std::abort();
    }
    EVP_MD_CTX_free(copy);
    return digest;
  }
  EVP_MD_CTX* const context;
  size_t rows = 0;
  Digest first{};
};

LogitsDigest::LogitsDigest(TaskQueue* queue, bool all)
    : queue_(queue), all_(all), hash_(std::make_unique<Hash>()) {}
LogitsDigest::~LogitsDigest() = default;

void LogitsDigest::Add(std::vector<float>* logits) {
  if (added_++ > 0 && !all_) return;
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &LogitsDigest::HasRoom));
    waiting_.push_back(std::move(*logits));
    logits->clear();
    if (!spare_.empty()) {
      *logits = std::move(spare_.back());
      spare_.pop_back();
    }
    if (std::exchange(working_, true)) return;
  }
  // Dropped or not, it is wanted.
  const auto work = [self = shared_from_this()](TaskQueue::Fate) { self->Work(); };
  if (!queue_->Submit(work)) Work();
}

void LogitsDigest::Work() {
  for (;;) {
    std::vector<float> row;
    std::function<void(const Digests&)> done;
    {
      absl::MutexLock lock(&mu_);
      if (waiting_.empty()) {
        working_ = false;
        std::swap(done, done_);
      } else {
        row = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
    if (row.empty()) {
      if (done != nullptr) done(Made());
      return;
    }
    hash_->Add(row);
    absl::MutexLock lock(&mu_);
    if (all_) spare_.push_back(std::move(row));
  }
}

void LogitsDigest::Finish(std::function<void(const Digests&)> done) {
  {
    absl::MutexLock lock(&mu_);
    if (working_) {
      done_ = std::move(done);
      return;
    }
  }
  done(Made());
}

LogitsDigest::Digests LogitsDigest::Made() {
  Digests made;
  made.first = hash_->first;
  if (all_ && hash_->rows > 0) made.all = hash_->SoFar();
  return made;
}

}  // namespace hearth
