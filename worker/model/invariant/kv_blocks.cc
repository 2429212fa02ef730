#include "worker/model/invariant/kv_blocks.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/kernels/base/workspace.h"

namespace hearth {

// Under the account's lock.
struct KvBlocks::Aside {
  explicit Aside(std::shared_ptr<Account> of) : account(std::move(of)) {}
  const std::shared_ptr<Account> account;
  uint64_t left_bytes = 0;
  int holders = 1;  // 0: ended
};

struct KvBlocks::Account {
  Account(uint64_t budget, const char* arena) : budget_bytes(budget), name(arena) {}
  // REQUIRES, as the others: the lock is held.
  uint64_t Unused() const {
    assert(used_bytes + reserved_bytes <= budget_bytes);
    return budget_bytes - used_bytes - reserved_bytes;
  }
  absl::Status CheckRoom(uint64_t bytes) {
    if (bytes <= Unused()) return absl::OkStatus();
    lacking_bytes = bytes - Unused();
    return absl::ResourceExhaustedError(absl::StrCat(name, ": ", bytes, " more are needed, and ",
                                                     used_bytes + reserved_bytes, " of ",
                                                     budget_bytes, " are in use"));
  }
  // To be called once the lock is released; null: nobody waits for what is free now.
  std::function<void()> TakeWatcher() {
    if (on_freed == nullptr || Unused() <= watched_bytes) return nullptr;
    return std::exchange(on_freed, nullptr);
  }
  // `bytes` from what is set aside, as far as it goes, and from what is free. Says how many came
  // from what was set aside.
  absl::StatusOr<uint64_t> Use(uint64_t bytes, Aside* aside) {
    const uint64_t from_aside = aside == nullptr ? 0 : std::min(bytes, aside->left_bytes);
    if (absl::Status room = CheckRoom(bytes - from_aside); !room.ok()) return room;
    if (aside != nullptr) aside->left_bytes -= from_aside;
    assert(reserved_bytes >= from_aside);
    reserved_bytes -= from_aside;
    used_bytes += bytes;
    return from_aside;
  }
  void GiveBack(uint64_t bytes, Aside* aside, uint64_t from_aside) {
    assert(used_bytes >= bytes);
    used_bytes -= bytes;
    if (aside == nullptr || aside->holders == 0) return;
    aside->left_bytes += from_aside;
    reserved_bytes += from_aside;
  }
  void DropFree() {
    free.clear();
    free_bytes = 0;
  }

  // Memory at one address is the same memory as long as somebody holds it.
  using AdoptedKey = std::pair<const std::byte*, size_t>;
  void ForgetEnded(const AdoptedKey& key) {
    const auto known = adopted.find(key);
    if (known != adopted.end() && known->second.expired()) adopted.erase(known);
  }

  const uint64_t budget_bytes;
  const char* const name;
  std::mutex mu;
  uint64_t used_bytes = 0, reserved_bytes = 0, free_bytes = 0, taken_blocks = 0;
  uint64_t lacking_bytes = 0, watched_bytes = 0;
  std::function<void()> on_freed;                   // once more than watched_bytes are unused
  std::map<size_t, std::vector<KernelBytes>> free;  // by size
  std::map<AdoptedKey, std::weak_ptr<std::byte[]>> adopted;
};

// A block's deleter: its bytes go back to the budget, its memory to where it came from.
struct KvBlocks::Release {
  void operator()(std::byte* memory) {
    std::function<void()> watcher;
    {
      const std::lock_guard<std::mutex> lock(account->mu);
      account->GiveBack(size_bytes, aside.get(), from_aside);
      if (adopted != nullptr) {
        account->ForgetEnded({memory, size_bytes});  // not a newer one's
      } else {
        account->free[size_bytes].emplace_back(memory);
        account->free_bytes += size_bytes;
      }
      watcher = account->TakeWatcher();
    }
    if (watcher) watcher();
  }

  std::shared_ptr<Account> account;
  size_t size_bytes;
  std::shared_ptr<Aside> aside;  // null: it was not taken from any
  uint64_t from_aside;           // of its bytes
  KvBlock adopted;               // null: the memory is the arena's
};

KvBlocks::KvBlocks(uint64_t budget_bytes, const char* name)
    : account_(std::make_shared<Account>(budget_bytes, name)) {}

KvBlocks::Reservation& KvBlocks::Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  End();
  aside_ = std::move(other.aside_);
  return *this;
}

void KvBlocks::Reservation::End() {
  if (aside_ == nullptr) return;
  std::function<void()> watcher;
  {
    const std::lock_guard<std::mutex> lock(aside_->account->mu);
    assert(aside_->holders >= 1);
    if (--aside_->holders == 0) {
      assert(aside_->account->reserved_bytes >= aside_->left_bytes);
      aside_->account->reserved_bytes -= aside_->left_bytes;
      aside_->left_bytes = 0;
      watcher = aside_->account->TakeWatcher();
    }
  }
  aside_ = nullptr;
  if (watcher) watcher();
}

KvBlocks::Reservation KvBlocks::Reservation::Shared() const {
  Reservation shared;
  if (aside_ == nullptr) return shared;
  const std::lock_guard<std::mutex> lock(aside_->account->mu);
  assert(aside_->holders >= 1);
  ++aside_->holders;
  shared.aside_ = aside_;
  return shared;
}

absl::Status KvBlocks::Reserve(uint64_t bytes, Reservation* reserved) {
  if (reserved->aside_ == nullptr) reserved->aside_ = std::make_shared<Aside>(account_);
  assert(reserved->aside_->account == account_);
  const std::lock_guard<std::mutex> lock(account_->mu);
  if (absl::Status room = account_->CheckRoom(bytes); !room.ok()) return room;
  account_->reserved_bytes += bytes;
  reserved->aside_->left_bytes += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KvBlock>> KvBlocks::Take(absl::Span<const size_t> sizes,
                                                    const Reservation* reserved) {
  const std::shared_ptr<Aside> aside = reserved == nullptr ? nullptr : reserved->aside_;
  uint64_t bytes = 0, from_aside = 0;
  for (const size_t size : sizes) bytes += size;
  std::vector<KernelBytes> memory;
  {
    const std::lock_guard<std::mutex> lock(account_->mu);
    const absl::StatusOr<uint64_t> used = account_->Use(bytes, aside.get());
    if (!used.ok()) return used.status();
    from_aside = *used;
    account_->taken_blocks += sizes.size();
    for (const size_t size : sizes) {
      std::vector<KernelBytes>& free = account_->free[size];
      memory.emplace_back();
      if (free.empty()) continue;
      memory.back() = std::move(free.back());
      free.pop_back();
      account_->free_bytes -= size;
    }
    // Free memory of another size must not keep the machine from having this one.
    if (account_->used_bytes + account_->free_bytes > account_->budget_bytes) account_->DropFree();
  }
  try {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (memory[i] == nullptr) memory[i] = AllocateKernelBytes(sizes[i]);
    }
  } catch (const std::bad_alloc&) {
    const std::lock_guard<std::mutex> lock(account_->mu);
    account_->GiveBack(bytes, aside.get(), from_aside);
    return absl::ResourceExhaustedError(
        absl::StrCat(account_->name, ": the machine has no memory for ", bytes, " more"));
  }
  std::vector<KvBlock> blocks;
  blocks.reserve(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const uint64_t part = std::min<uint64_t>(sizes[i], from_aside);
    from_aside -= part;
    blocks.push_back(
        KvBlock(memory[i].release(), Release{account_, sizes[i], aside, part, nullptr}));
  }
  return blocks;
}

absl::StatusOr<KvBlock> KvBlocks::Adopt(KvBlock memory, size_t size_bytes,
                                        const Reservation* reserved, bool alone) {
  assert(memory != nullptr);
  const std::shared_ptr<Aside> aside = reserved == nullptr ? nullptr : reserved->aside_;
  if (Owns(memory)) return memory;
  std::byte* at = memory.get();
  const Account::AdoptedKey key{at, size_bytes};
  uint64_t from_aside = 0;
  {
    const std::lock_guard<std::mutex> lock(account_->mu);
    const auto known = account_->adopted.find(key);
    if (known != account_->adopted.end() && !alone) {
      if (KvBlock living = known->second.lock(); living != nullptr) return living;
    }
    const absl::StatusOr<uint64_t> used = account_->Use(size_bytes, aside.get());
    if (!used.ok()) return used.status();
    from_aside = *used;
  }
  // Not under the lock, which its end takes. Two that adopt at the same moment may both count it.
  KvBlock block(at, Release{account_, size_bytes, aside, from_aside, std::move(memory)});
  if (alone) return block;
  const std::lock_guard<std::mutex> lock(account_->mu);
  account_->adopted[key] = block;
  return block;
}

bool KvBlocks::Owns(const KvBlock& memory) const {
  const auto* ours = std::get_deleter<Release>(memory);
  return ours != nullptr && ours->account == account_;
}

bool KvBlocks::Gave(const KvBlock& memory) const {
  return Owns(memory) && std::get_deleter<Release>(memory)->adopted == nullptr;
}

KvBlock KvBlocks::Counted(const KvBlock& memory, size_t size_bytes) const {
  if (Owns(memory)) return memory;
  const std::lock_guard<std::mutex> lock(account_->mu);
  const auto known = account_->adopted.find({memory.get(), size_bytes});
  return known == account_->adopted.end() ? nullptr : known->second.lock();
}

bool KvBlocks::Counts(const KvBlock& memory, size_t size_bytes) const {
  return Counted(memory, size_bytes) != nullptr;
}

const char* KvBlocks::name() const { return account_->name; }
uint64_t KvBlocks::budget_bytes() const { return account_->budget_bytes; }
uint64_t KvBlocks::used_bytes() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return account_->used_bytes;
}
uint64_t KvBlocks::taken_blocks() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return account_->taken_blocks;
}
uint64_t KvBlocks::reserved_bytes() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return account_->reserved_bytes;
}

uint64_t KvBlocks::TakeLacking() const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  return std::exchange(account_->lacking_bytes, 0);
}

void KvBlocks::AddLacking(uint64_t bytes) const {
  const std::lock_guard<std::mutex> lock(account_->mu);
  if (account_->lacking_bytes > 0) account_->lacking_bytes += bytes;
}

void KvBlocks::Watch(uint64_t free_bytes, std::function<void()> on_freed) const {
  {
    const std::lock_guard<std::mutex> lock(account_->mu);
    account_->watched_bytes = free_bytes;
    account_->on_freed = std::move(on_freed);
    on_freed = account_->TakeWatcher();
  }
  if (on_freed) on_freed();
}

}  // namespace hearth
