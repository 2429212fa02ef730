#include "worker/engine/prefix_pool.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr uint32_t kChunk = 16;

KvLayout Layout() {
  KvLayout layout;
  layout.chunk_tokens = kChunk;
  layout.window = 20;
  layout.kv_heads = 1;
  layout.head_dim = 4;
  layout.layers = {LayerGroup::kLocal, LayerGroup::kGlobal};
  return layout;
}

// Returns sealed objects for `boundary`; every slice digest is `fill`. Objects whose ids `known`
// contains are taken from `known`, as after a restore from `known`.
KvObjects Objects(uint32_t boundary, uint64_t fill, const KvObjects& known = {}) {
  KvObjects objects;
  for (const ObjectId& id : NeededObjects(Layout(), boundary)) {
    std::shared_ptr<const KvObject> object;
    for (const auto& other : known) {
      if (other->id == id) object = other;
    }
    if (object == nullptr) {
      auto fresh = NewObject(Layout(), id);
      fresh->slice_digests.assign(1, fill);
      object = fresh;
    }
    objects.push_back(object);
  }
  return objects;
}

uint64_t Bytes(const KvObjects& objects) {
  uint64_t bytes = 0;
  for (const auto& object : objects) bytes += object->size_bytes;
  return bytes;
}

PrefixRequest Prefix(uint32_t tokens, std::vector<uint32_t> cuts = {}, uint32_t fork_at = 1000,
                     const std::string& tenant = "a") {
  PrefixRequest prefix;
  for (uint32_t i = 0; i < tokens; ++i) prefix.token_ids.push_back(i < fork_at ? i : i + 5000);
  prefix.cuts = std::move(cuts);
  prefix.tenant = tenant;
  return prefix;
}

TEST(PrefixPoolTest, LookupFindsLongestUsablePrefix) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  pool.Insert(Prefix(32), 32, Objects(32, 1));
  pool.Insert(Prefix(48), 48, Objects(48, 1));
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).boundary, 48u);
  EXPECT_EQ(pool.Lookup(Prefix(60), 47).boundary, 32u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 40), 59).boundary, 32u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 31), 59).boundary, 0u);
}

TEST(PrefixPoolTest, MissStillReportsMatchedTokens) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  pool.Insert(Prefix(48), 48, Objects(48, 1));
  const PooledPrefix found = pool.Lookup(Prefix(60, {}, 40), 59);
  EXPECT_EQ(found.boundary, 0u);
  EXPECT_EQ(found.matched_tokens, 40u);
}

TEST(PrefixPoolTest, AnotherTenantFindsNothing) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  pool.Insert(Prefix(32), 32, Objects(32, 1));
  const PooledPrefix found = pool.Lookup(Prefix(60, {}, 1000, "b"), 59);
  EXPECT_EQ(found.boundary, 0u);
  EXPECT_EQ(found.matched_tokens, 0u);
}

TEST(PrefixPoolTest, ExactClassNeedsEqualPrefillCuts) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  pool.Insert(Prefix(48, {20}), 32, Objects(32, 1));
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).boundary, 0u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {20}), 59).boundary, 32u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {20, 40}), 59).boundary,
            32u);  // cuts above the boundary are not compared
  EXPECT_EQ(pool.Lookup(Prefix(60, {16, 20, 32}), 59).boundary,
            32u);  // cuts at multiples of C are not compared
}

TEST(PrefixPoolTest, UnalignedBoundaryNeedsEqualPrefillCut) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  pool.Insert(Prefix(48, {20}), 20, Objects(20, 1));
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).boundary, 0u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {20}), 59).boundary, 20u);
}

TEST(PrefixPoolTest, PortableClassIgnoresPrefillCuts) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kPortable);
  pool.Insert(Prefix(48, {20}), 20, Objects(20, 1));
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).boundary, 20u);
}

TEST(PrefixPoolTest, SharedObjectsCountOnce) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  const KvObjects first = Objects(32, 1);
  pool.Insert(Prefix(32), 32, first);
  EXPECT_EQ(pool.bytes(), Bytes(first));
  const KvObjects second = Objects(64, 1, first);
  pool.Insert(Prefix(64), 64, second);
  // The first restore point shares its global objects of [0, 32) with the second; its local objects
  // are separate.
  const size_t global_bytes = Layout().ObjectBytes(kChunk, LayerGroup::kGlobal);
  EXPECT_EQ(pool.bytes(), Bytes(first) + Bytes(second) - 2 * global_bytes);
}

TEST(PrefixPoolTest, EvictsLeastRecentlyUsedPrefix) {
  const KvObjects a = Objects(32, 1), b = Objects(32, 2), c = Objects(32, 3);
  PrefixPool pool(2 * Bytes(a), kChunk, Exactness::kExact);
  pool.Insert(Prefix(32, {}, 1), 32, a);
  pool.Insert(Prefix(32, {}, 2), 32, b);
  // Makes prefix 1 more recently used than prefix 2.
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 1), 59).boundary, 32u);
  pool.Insert(Prefix(32, {}, 3), 32, c);
  EXPECT_EQ(pool.bytes(), Bytes(a) + Bytes(c));
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 1), 59).boundary, 32u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 2), 59).boundary, 0u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 3), 59).boundary, 32u);
}

TEST(PrefixPoolTest, FoundPrefixOutlivesEviction) {
  const KvObjects a = Objects(32, 1);
  PrefixPool pool(Bytes(a), kChunk, Exactness::kExact);
  pool.Insert(Prefix(32, {}, 1), 32, a);
  const PooledPrefix found = pool.Lookup(Prefix(60, {}, 1), 59);
  pool.Insert(Prefix(32, {}, 2), 32, Objects(32, 2));
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 1), 59).boundary, 0u);
  ASSERT_EQ(found.objects.size(), a.size());
  EXPECT_EQ(found.objects[0]->slice_digests[0], 1u);
}

TEST(PrefixPoolTest, ReinsertionDetectsDifferentBits) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kExact);
  EXPECT_EQ(pool.Insert(Prefix(32), 32, Objects(32, 1)), PrefixPool::InsertResult::kInserted);
  EXPECT_EQ(pool.Insert(Prefix(40), 32, Objects(32, 1)), PrefixPool::InsertResult::kPresent);
  EXPECT_EQ(pool.Insert(Prefix(40), 32, Objects(32, 9)), PrefixPool::InsertResult::kDiffers);
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).objects[0]->slice_digests[0], 1u);
}

TEST(PrefixPoolTest, PortableReinsertionToleratesRounding) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kPortable);
  EXPECT_EQ(pool.Insert(Prefix(32), 32, Objects(32, 1)), PrefixPool::InsertResult::kInserted);
  EXPECT_EQ(pool.Insert(Prefix(40), 32, Objects(32, 9)), PrefixPool::InsertResult::kPresent);
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).objects[0]->slice_digests[0], 1u);
}

bool Any(const KvObject&) { return true; }

TEST(PrefixPoolTest, EvictionSkipsPrefixesInUse) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kInvariant);
  const KvObjects held = Objects(32, 1);  // held by a running sequence
  pool.Insert(Prefix(32, {}, 1), 32, held);
  pool.Insert(Prefix(32, {}, 2), 32, Objects(32, 2));
  pool.Insert(Prefix(32, {}, 3), 32, Objects(32, 3));
  EXPECT_FALSE(pool.EvictOne([](const KvObject&) { return false; }));
  EXPECT_TRUE(pool.EvictOne(Any));
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 1), 59).boundary, 32u)
      << "the older prefix is in use, so evicting it frees nothing";
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 2), 59).boundary, 0u);
  EXPECT_TRUE(pool.EvictOne(Any));
  EXPECT_FALSE(pool.EvictOne(Any));
  EXPECT_EQ(pool.bytes(), Bytes(held));
}

TEST(PrefixPoolTest, EvictingOnePrefixKeepsSharedObjects) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kInvariant);
  {
    const KvObjects shared = Objects(32, 1);
    pool.Insert(Prefix(32, {}, 1), 32, shared);
    pool.Insert(Prefix(32, {}, 2), 32, shared);
  }
  EXPECT_TRUE(pool.EvictOne(Any));
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 1), 59).boundary, 0u);
  EXPECT_EQ(pool.Lookup(Prefix(60, {}, 2), 59).boundary, 32u);
  EXPECT_TRUE(pool.EvictOne(Any));
  EXPECT_EQ(pool.bytes(), 0u);
}

TEST(PrefixPoolTest, ZeroCapacityKeepsNothing) {
  PrefixPool pool(0, kChunk, Exactness::kExact);
  EXPECT_EQ(pool.Insert(Prefix(32), 32, Objects(32, 1)), PrefixPool::InsertResult::kTooLarge);
  EXPECT_EQ(pool.bytes(), 0u);
  EXPECT_EQ(pool.Lookup(Prefix(60), 59).boundary, 0u);
}

TEST(PrefixPoolTest, DeviceBlocksReplaceSharedObjects) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kInvariant);
  const KvObjects host = Objects(32, 1), longer = Objects(48, 1, host);
  pool.Insert(Prefix(32), 32, host);
  pool.Insert(Prefix(48), 48, longer);
  const uint64_t bytes = pool.bytes();
  auto on_device = std::make_shared<KvObject>(*host[0]);
  on_device->device_block = AllocateAligned(on_device->size_bytes);
  auto unknown = std::make_shared<KvObject>(*Objects(16, 2)[0]);
  unknown->device_block = AllocateAligned(unknown->size_bytes);
  pool.UseDeviceBlocks({on_device, unknown});
  EXPECT_EQ(pool.bytes(), bytes);
  for (const uint32_t boundary : {32u, 48u}) {
    const PooledPrefix found = pool.Lookup(Prefix(boundary), boundary);
    ASSERT_EQ(found.boundary, boundary);
    EXPECT_EQ(found.objects[0], on_device);
    for (size_t i = 1; i < found.objects.size(); ++i) {
      EXPECT_EQ(found.objects[i]->device_block, nullptr);
    }
  }
  // the object's block is counted once, and freed with the last restore point
  EXPECT_EQ(pool.Insert(Prefix(32), 32, host), PrefixPool::InsertResult::kPresent);
  pool.Forget(Prefix(48), 48);
  EXPECT_EQ(pool.bytes(), 0u);
  EXPECT_EQ(on_device.use_count(), 1);
}

// A late object whose bytes arrive when another thread has used the pool.
class WaitsForPool : public LateBytes {
 public:
  explicit WaitsForPool(const PrefixPool* pool) : pool_(pool) {}
  bool Complete() override {
    std::thread([this] { pool_->bytes(); }).join();
    return true;
  }

 private:
  const PrefixPool* const pool_;
};

TEST(PrefixPoolTest, LateBytesArriveWithoutLock) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kInvariant);
  const auto late = [&](uint64_t fill) {
    KvObjects objects;
    for (const auto& object : Objects(32, fill)) {
      objects.push_back(std::make_shared<KvObject>(*object));
      std::const_pointer_cast<KvObject>(objects.back())->late =
          std::make_shared<WaitsForPool>(&pool);
    }
    return objects;
  };
  EXPECT_EQ(pool.Insert(Prefix(32), 32, late(1)), PrefixPool::InsertResult::kInserted);
  EXPECT_EQ(pool.Insert(Prefix(32), 32, late(1)), PrefixPool::InsertResult::kPresent);
  EXPECT_EQ(pool.Insert(Prefix(32), 32, late(2)), PrefixPool::InsertResult::kDiffers);
}

// Sequences that restored the same bytes at the same time have a block each.
TEST(PrefixPoolTest, BlocksWithSharedBytesAreEvicted) {
  PrefixPool pool(1 << 20, kChunk, Exactness::kInvariant);
  for (const uint32_t boundary : {32u, 48u}) {
    static const KvObjects host = Objects(32, 1);
    auto on_device = std::make_shared<KvObject>(*host[0]);
    on_device->device_block = AllocateAligned(on_device->size_bytes);
    KvObjects objects = Objects(boundary, 1);
    objects[0] = on_device;
    pool.Insert(Prefix(boundary), boundary, objects);
  }
  const auto counts = [](const KvObject& object) { return object.device_block != nullptr; };
  EXPECT_EQ(pool.EvictableBytes(counts), 2 * NewObject(Layout(), {0, kChunk})->size_bytes);
  EXPECT_TRUE(pool.EvictOne(counts));
  EXPECT_TRUE(pool.EvictOne(counts));
  EXPECT_FALSE(pool.EvictOne(counts));
  EXPECT_EQ(pool.bytes(), 0u);
}

}  // namespace
}  // namespace hearth
