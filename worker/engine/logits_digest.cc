#include "worker/engine/logits_digest.h"

#include <openssl/evp.h>

#include <cassert>
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
    assert(waiting_.size() + 1 < kMaxWaitingRows + kMaxStepRows);
    waiting_.push_back(std::move(*logits));
    logits->clear();
    if (!spare_.empty()) {
      *logits = std::move(spare_.back());
      spare_.pop_back();
    }
    if (std::exchange(working_, true)) return;
  }
  Work();
}

bool LogitsDigest::AwaitRoom(std::function<void()> on_room) {
  absl::MutexLock lock(&mu_);
  if (waiting_.size() < kMaxWaitingRows) return true;
  assert(on_room_ == nullptr);
  on_room_ = std::move(on_room);
  return false;
}

// Dropped or not, each row is wanted: where no thread takes it, it is hashed here.
void LogitsDigest::Work() {
  do {
    const auto work = [self = shared_from_this()](TaskQueue::Fate) {
      if (self->HashOne()) self->Work();
    };
    if (queue_->Submit(work)) return;
  } while (HashOne());
}

// Whether there is more to do.
bool LogitsDigest::HashOne() {
  const std::vector<float>* row = nullptr;
  {
    absl::MutexLock lock(&mu_);
    assert(working_ && !waiting_.empty());
    row = &waiting_.front();  // stays where it is while others are added
  }
  hash_->Add(*row);
  std::function<void()> on_room;
  std::function<void(const Digests&)> done;
  bool more = false;
  {
    absl::MutexLock lock(&mu_);
    if (all_) spare_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (waiting_.size() < kMaxWaitingRows) std::swap(on_room, on_room_);
    more = working_ = !waiting_.empty();
    if (!more) std::swap(done, done_);
  }
  if (on_room != nullptr) on_room();
  if (done != nullptr) done(Made());
  return more;
}

void LogitsDigest::Finish(std::function<void(const Digests&)> done) {
  {
    absl::MutexLock lock(&mu_);
    assert(done_ == nullptr);
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
