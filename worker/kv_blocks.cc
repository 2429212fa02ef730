#include "worker/kv_blocks.h"

#include <cassert>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/kernels/workspace.h"

namespace hearth {

struct KvBlocks::Account {
  explicit Account(uint64_t budget) : budget_bytes(budget) {}
  // REQUIRES: the lock is held.
  absl::Status Reserve(uint64_t bytes) {
    if (bytes > budget_bytes - used_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("kv-bytes: ", bytes,
                                                       " more are needed, and ", used_bytes, " of ",
                                                       budget_bytes, " are in use"));
    }
    used_bytes += bytes;
    return absl::OkStatus();
  }
  void DropFree() {
    free.clear();
    free_bytes = 0;
  }

  // Memory at one address is the same memory as long as somebody holds it.
  using AdoptedKey = std::pair<const std::byte*, size_t>;
  // REQUIRES: the lock is held.
  void ForgetEnded(const AdoptedKey& key) {
    const auto known = adopted.find(key);
    if (known != adopted.end() && known->second.expired()) adopted.erase(known);
  }

  const uint64_t budget_bytes;
  std::mutex mu;
  uint64_t used_bytes = 0, free_bytes = 0;
  std::map<size_t, std::vector<KernelBytes>> free;  // by size
  std::map<AdoptedKey, std::weak_ptr<std::byte[]>> adopted;
};

// What ends a block: its bytes go back, and its memory where it came from.
struct KvBlocks::Release {
  void operator()(std::byte* memory) {
    const std::lock_guard<std::mutex> lock(account->mu);
    assert(account->used_bytes >= size_bytes);
    account->used_bytes -= size_bytes;
    if (adopted != nullptr) return account->ForgetEnded({memory, size_bytes});  // not a newer one's
    account->free[size_bytes].emplace_back(memory);
    account->free_bytes += size_bytes;
  }

  std::shared_ptr<Account> account;
  size_t size_bytes;
  KvBlock adopted;  // null: the memory is the arena's
};

KvBlocks::KvBlocks(uint64_t budget_bytes) : account_(std::make_shared<Account>(budget_bytes)) {}

absl::StatusOr<std::vector<KvBlock>> KvBlocks::Take(absl::Span<const size_t> sizes) {
  uint64_t bytes = 0;
  for (const size_t size : sizes) bytes += size;
  std::vector<KernelBytes> memory;
  {
    const std::lock_guard<std::mutex> lock(account_->mu);
    if (absl::Status reserved = account_->Reserve(bytes); !reserved.ok()) return reserved;
    for (const size_t size : sizes) {
      std::vector<KernelBytes>& free = account_->free[size];
      memory.emplace_back();
      if (free.empty()) continue;
      memory.back() = std::move(free.back());
      free.pop_back();
      account_->free_bytes -= size;
    }
    // What waits for another size must not keep the machine from having this one.
    if (account_->used_bytes + account_->free_bytes > account_->budget_bytes) account_->DropFree();
  }
  try {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (memory[i] == nullptr) memory[i] = AllocateKernelBytes(sizes[i]);
    }
  } catch (const std::bad_alloc&) {
    const std::lock_guard<std::mutex> lock(account_->mu);
    account_->used_bytes -= bytes;
    return absl::ResourceExhaustedError(
        absl::StrCat("kv-bytes: the machine has no memory for ", bytes, " more"));
  }
  std::vector<KvBlock> blocks;
  blocks.reserve(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(KvBlock(memory[i].release(), Release{account_, sizes[i], nullptr}));
  }
  return blocks;
}

absl::StatusOr<KvBlock> KvBlocks::Adopt(KvBlock memory, size_t size_bytes) {
  assert(memory != nullptr);
  if (Owns(memory)) return memory;
  std::byte* at = memory.get();
  const Account::AdoptedKey key{at, size_bytes};
  {
    const std::lock_guard<std::mutex> lock(account_->mu);
    const auto known = account_->adopted.find(key);
    if (known != account_->adopted.end()) {
      if (KvBlock living = known->second.lock(); living != nullptr) return living;
    }
    if (absl::Status reserved = account_->Reserve(size_bytes); !reserved.ok()) return reserved;
  }
  // Not under the lock, which its end takes. Two that adopt at the same moment may both count it.
  KvBlock block(at, Release{account_, size_bytes, std::move(memory)});
  const std::lock_guard<std::mutex> lock(account_->mu);
  account_->adopted[key] = block;
  return block;
}

bool KvBlocks::Owns(const KvBlock& memory) const {
  const auto* ours = std::get_deleter<Release>(memory);
  return ours != nullptr && ours->account == account_;
}

bool KvBlocks::Counts(const KvBlock& memory, size_t size_bytes) const {
  if (Owns(memory)) return true;
  const std::lock_guard<std::mutex> lock(account_->mu);
  const auto known = account_->adopted.find({memory.get(), size_bytes});
  return known != account_->adopted.end() && !known->second.expired();
}

uint64_t KvBlocks::budget_bytes() const { return account_->budget_bytes; }
uint64_t KvBlocks::used_bytes() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return account_->used_bytes;
}

}  // namespace hearth
