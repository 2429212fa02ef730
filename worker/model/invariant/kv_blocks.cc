#include "worker/model/invariant/kv_blocks.h"

#include <cassert>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace hearth {

struct KvBlocks::Account {
  struct FreeBlock {
    void operator()(std::byte* bytes) const { memory->Free(bytes); }
    BlockMemory* memory;
  };
  using BlockBytes = std::unique_ptr<std::byte, FreeBlock>;

  Account(uint64_t budget, std::shared_ptr<BlockMemory> of_blocks)
      : budget_bytes(budget), memory(std::move(of_blocks)) {}
  // All methods REQUIRE that the caller holds `mu`.
  absl::Status Use(uint64_t bytes) {
    assert(used_bytes <= budget_bytes);
    if (bytes > budget_bytes - used_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("kv-bytes: ", bytes,
                                                       " more bytes are needed, but ", used_bytes,
                                                       " of ", budget_bytes, " bytes are in use"));
    }
    used_bytes += bytes;
    assert(used_bytes <= budget_bytes);
    return absl::OkStatus();
  }
  void GiveBack(uint64_t bytes) {
    assert(used_bytes >= bytes);
    used_bytes -= bytes;
  }
  void DropFree() {
    free.clear();
    free_bytes = 0;
  }

  // Key of adopted memory. As long as the memory is held, its address identifies it.
  using AdoptedKey = std::pair<const std::byte*, size_t>;
  void EraseExpired(const AdoptedKey& key) {
    const auto known = adopted.find(key);
    if (known != adopted.end() && known->second.expired()) adopted.erase(known);
  }

  uint64_t budget_bytes;  // changes only before the first block
  const std::shared_ptr<BlockMemory> memory;
  std::mutex mu;
  uint64_t used_bytes = 0, free_bytes = 0, taken_blocks = 0;
  std::function<void()> on_freed;                  // callback for the next freed block; null: none
  std::map<size_t, std::vector<BlockBytes>> free;  // free memory, by size in bytes
  std::map<AdoptedKey, std::weak_ptr<std::byte[]>> adopted;
};

// Deleter of a block: returns the block's bytes to the budget, and its memory to the free list or
// to the owner of adopted memory.
struct KvBlocks::Release {
  void operator()(std::byte* memory) {
    std::function<void()> on_freed;
    {
      const std::lock_guard<std::mutex> lock(account->mu);
      account->GiveBack(size_bytes);
      if (adopted != nullptr) {
        // does nothing if a newer block has the same key
        account->EraseExpired({memory, size_bytes});
      } else {
        account->free[size_bytes].emplace_back(memory, Account::FreeBlock{account->memory.get()});
        account->free_bytes += size_bytes;
      }
      on_freed = std::exchange(account->on_freed, nullptr);
    }
    if (on_freed) on_freed();
  }

  std::shared_ptr<Account> account;
  size_t size_bytes;
  KvBlock adopted;  // null: the memory belongs to this KvBlocks
};

KvBlocks::KvBlocks(uint64_t budget_bytes, std::shared_ptr<BlockMemory> memory)
    : account_(std::make_shared<Account>(budget_bytes, std::move(memory))) {}

absl::StatusOr<std::vector<KvBlock>> KvBlocks::Take(absl::Span<const size_t> sizes) {
  uint64_t bytes = 0;
  for (const size_t size : sizes) bytes += size;
  BlockMemory* const source = account_->memory.get();
  std::vector<Account::BlockBytes> memory;
  {
    const std::lock_guard<std::mutex> lock(account_->mu);
    if (absl::Status room = account_->Use(bytes); !room.ok()) return room;
    account_->taken_blocks += sizes.size();
    for (const size_t size : sizes) {
      std::vector<Account::BlockBytes>& free = account_->free[size];
      memory.emplace_back(nullptr, Account::FreeBlock{source});
      if (free.empty()) continue;
      memory.back() = std::move(free.back());
      free.pop_back();
      assert(account_->free_bytes >= size);
      account_->free_bytes -= size;
    }
    // If used and free blocks exceed the budget, delete the free blocks: this request cannot use
    // free blocks of other sizes.
    if (account_->used_bytes + account_->free_bytes > account_->budget_bytes) account_->DropFree();
  }
  absl::Status allocated;
  const auto allocate = [&](size_t size) {
    try {
      return source->Allocate(size);
    } catch (const std::bad_alloc&) {
      ReleaseFree();
      return source->Allocate(size);
    }
  };
  try {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (memory[i] == nullptr) memory[i].reset(allocate(sizes[i]));
    }
  } catch (const std::bad_alloc&) {
    allocated = absl::UnavailableError(absl::StrCat("kv-bytes: the ",
                                                    source->is_on_device() ? "device" : "machine",
                                                    " has no memory for ", bytes, " more bytes"));
  } catch (const DeviceError& error) {
    allocated = absl::InternalError(error.what());
  }
  if (!allocated.ok()) {
    const std::lock_guard<std::mutex> lock(account_->mu);
    account_->GiveBack(bytes);
    return allocated;
  }
  assert(memory.size() == sizes.size());
  std::vector<KvBlock> blocks;
  blocks.reserve(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    blocks.push_back(KvBlock(memory[i].release(), Release{account_, sizes[i], nullptr}));
  }
  return blocks;
}

void KvBlocks::ReleaseFree() {
  const std::lock_guard<std::mutex> lock(account_->mu);
  account_->DropFree();
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
    if (absl::Status room = account_->Use(size_bytes); !room.ok()) return room;
  }
  // Create the block without the lock, because its deleter locks. If two threads adopt the same
  // memory at the same time, it may be counted twice.
  KvBlock block(at, Release{account_, size_bytes, std::move(memory)});
  const std::lock_guard<std::mutex> lock(account_->mu);
  account_->adopted[key] = block;
  return block;
}

bool KvBlocks::Owns(const KvBlock& memory) const {
  const auto* ours = std::get_deleter<Release>(memory);
  return ours != nullptr && ours->account == account_;
}

bool KvBlocks::WasTaken(const KvBlock& memory) const {
  return Owns(memory) && std::get_deleter<Release>(memory)->adopted == nullptr;
}

BlockMemory& KvBlocks::memory() const { return *account_->memory; }
uint64_t KvBlocks::budget_bytes() const { return account_->budget_bytes; }
void KvBlocks::SetBudget(uint64_t budget_bytes) {
  assert(used_bytes() == 0 && taken_blocks() == 0);
  account_->budget_bytes = budget_bytes;
}
uint64_t KvBlocks::used_bytes() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return account_->used_bytes;
}
uint64_t KvBlocks::taken_blocks() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return account_->taken_blocks;
}

void KvBlocks::CallOnNextFree(std::function<void()> on_freed) const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  account_->on_freed = std::move(on_freed);
}

}  // namespace hearth
