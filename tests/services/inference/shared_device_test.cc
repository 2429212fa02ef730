// Fetches from device memory that a store shares: equal bytes, leases, reused memory, and every
// fallback to the host's memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "services/inference/object_builder.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/store/segment_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/fake_device.h"

namespace hearth {
namespace {

constexpr uint32_t kStored = 37;  // length of the stored prefix: two chunks and a remainder

class SharedDeviceTest : public testing::Test {
 protected:
  void Start(absl::Duration lease = absl::Minutes(10)) {
    cache_ = nullptr;
    StoreOptions options = StoreServer::SmallStore("");
    options.shared_memory = true;
    options.device = std::make_shared<FakeDevice>(16 << 20);
    server_ = std::make_unique<StoreServer>(options, "127.0.0.1:0", FreshSocket(), lease);
    cache_ = Client(FakeDevice::Importer([this] {
      if (during_ != nullptr) during_();
    }));
    PublishRequestSpec spec;
    spec.prefix = Prompt();
    spec.boundaries = {kStored};
    spec.objects = SmallObjects(kStored);
    server_->WaitForMemory();
    const PublishOutcome outcome = cache_->Publish(spec, absl::InfiniteDuration());
    ASSERT_EQ(outcome.published_tokens, kStored) << outcome.note;
    // The store copies a prefix to the device in the background, after its second fetch. Fetch
    // until the copy is used.
    const absl::Time patience = absl::Now() + absl::Minutes(2);
    while (Fetch(cache_.get()).slowest_tier != Tier::kGpu) {
      ASSERT_LT(absl::Now(), patience) << "nothing came from the device";
    }
  }
  static std::string FreshSocket() {
    static int number = 0;
    return absl::StrCat("@hearth-device-test-", getpid(), "-", ++number);
  }
  static PrefixRequest Prompt() { return {CountingTokens(kStored + 3), {kStored}, "default"}; }
  std::unique_ptr<RemotePrefixCache> Client(ImportDevice import) {
    return std::make_unique<RemotePrefixCache>(ConnectedTo(server_->address()), SmallFingerprint(),
                                               SmallLayout(), &counters_, /*shared_memory=*/true,
                                               std::move(import));
  }
  // Fetches the prompt, and checks that all returned bytes are right.
  FetchOutcome Fetch(RemotePrefixCache* cache) {
    FetchOutcome outcome = cache->Fetch(Prompt(), 0, kStored, absl::InfiniteDuration());
    if (outcome.usable_tokens == 0) return outcome;
    const auto expected = SmallObjects(kStored);
    EXPECT_EQ(outcome.objects.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const KvObject& object = *outcome.objects[i];
      const bool remainder = object.id.tokens < SmallLayout().chunk_tokens;
      EXPECT_TRUE(object.device_bytes != nullptr || object.bytes != nullptr);
      EXPECT_TRUE(!remainder || object.bytes != nullptr);
      EXPECT_EQ(object.slice_digests, expected[i]->slice_digests);
      const std::byte* const in_host = object.bytes.get();
      for (const std::byte* bytes : {object.device_bytes.get(), in_host}) {
        if (bytes == nullptr) continue;
        EXPECT_EQ(std::memcmp(bytes, expected[i]->bytes.get(), object.size_bytes), 0) << i;
      }
    }
    return outcome;
  }

  std::function<void()> during_;
  CacheCounters counters_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemotePrefixCache> cache_;
};

TEST_F(SharedDeviceTest, FrequentPrefixIsReadFromDevice) {
  Start();
  const uint64_t before = counters_.Read().bytes_from_device;
  const FetchOutcome outcome = Fetch(cache_.get());
  EXPECT_EQ(outcome.slowest_tier, Tier::kGpu);
  uint64_t chunk_bytes = 0;
  for (const auto& object : outcome.objects) {
    EXPECT_NE(object->device_bytes, nullptr);
    if (object->id.tokens == 16) {
      EXPECT_EQ(object->bytes, nullptr);
      chunk_bytes += object->size_bytes;
    }
  }
  EXPECT_EQ(counters_.Read().bytes_from_device - before, chunk_bytes);
  EXPECT_GE(server_->store()->Stats().tiers.back().hit_tokens, 2 * kStored);
}

TEST_F(SharedDeviceTest, LeaseKeepsBytesDuringCopy) {
  Start();
  during_ = [this] { ASSERT_TRUE(server_->store()->DropAll("default", true).ok()); };
  const FetchOutcome outcome = Fetch(cache_.get());
  EXPECT_EQ(outcome.usable_tokens, kStored) << outcome.note;
  EXPECT_EQ(outcome.slowest_tier, Tier::kGpu);
}

// The worst case: the lease expires during the copy, and the store reuses the memory.
TEST_F(SharedDeviceTest, ReusedMemoryIsNotReturned) {
  Start(absl::Milliseconds(300));
  during_ = [this] {
    // returns when the lease has ended
    EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
    ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  };
  // On a busy machine the lease may expire before the copy begins; then nothing is returned either.
  EXPECT_EQ(Fetch(cache_.get()).usable_tokens, 0u);
  EXPECT_GE(counters_.Read().shared_fallbacks.at("reused"), 1u);
}

TEST_F(SharedDeviceTest, OtherDeviceFallsBackToHost) {
  Start();
  int asked = 0;
  const auto other = Client([&](const DeviceMemoryHandle&) {
    ++asked;
    return absl::FailedPreconditionError(
        "the store's gpu tier is on a different GPU than this process uses");
  });
  for (int i = 0; i < 4; ++i) {
    const FetchOutcome outcome = Fetch(other.get());
    EXPECT_EQ(outcome.usable_tokens, kStored) << outcome.note;
    EXPECT_EQ(outcome.slowest_tier, Tier::kHost);
  }
  EXPECT_EQ(asked, 1) << "what failed once is not tried again";
}

TEST_F(SharedDeviceTest, LostStoreAbortsDeviceCopy) {
  Start();
  const SharedMemory memory = *server_->store()->shared_device();
  const std::string socket = FreshSocket();
  auto giver = *SegmentServer::Start(socket, memory.fd);
  SegmentClient* watched = nullptr;
  SegmentClient client(FakeDevice::Importer([&] {
    giver = nullptr;
    while (watched->current() != nullptr) std::this_thread::yield();
  }));
  watched = &client;
  ASSERT_TRUE(client.MapOffered(socket, memory.layout.id).ok());
  const auto device = client.current();
  ASSERT_NE(device, nullptr);
  const SegmentRange range{0, 4096, 0};
  ASSERT_TRUE(device->Check(range).ok());
  EXPECT_TRUE(absl::IsAborted(client.CopyOnDevice(*device, {range}).status()));
}

TEST_F(SharedDeviceTest, LostStoreUnmapsDevice) {
  Start();
  const SharedMemory memory = *server_->store()->shared_device();
  const std::string socket = FreshSocket();
  auto giver = *SegmentServer::Start(socket, memory.fd);
  SegmentClient client(FakeDevice::Importer());
  ASSERT_TRUE(client.MapOffered(socket, memory.layout.id).ok());
  const std::weak_ptr<const MappedSegment> mapped = client.current();
  ASSERT_FALSE(mapped.expired());
  giver = nullptr;
  const absl::Time patience = absl::Now() + absl::Minutes(2);
  while (!mapped.expired()) {
    ASSERT_LT(absl::Now(), patience) << "the device's memory is still mapped";
    std::this_thread::yield();
  }
}

// If a store offers a device segment in place of a host segment, the data is not in the file.
TEST_F(SharedDeviceTest, DeviceSegmentReadAsHostFails) {
  Start();
  const SharedMemory memory = *server_->store()->shared_device();
  const auto segment = *MappedSegment::Map(FileDescriptor(dup(memory.fd)));
  const ObjectId id = NeededObjects(SmallLayout(), 16).front();
  const std::vector<uint32_t> layers = SmallLayout().LayersOf(id.group);
  v1::SharedSlices shared;
  for (const uint32_t layer : layers) {
    shared.add_objects(0);
    shared.add_layers(layer);
    shared.add_offsets(0);
    shared.add_generations(0);
  }
  std::vector<ObjectBuilder::Announced> announced;
  for (const auto& object : SmallObjects(16)) {
    announced.push_back({object->id, object->slice_digests});
  }
  auto builder = *ObjectBuilder::Create(SmallLayout(), 16, std::move(announced));
  EXPECT_EQ(CopyShared(shared, *segment, &builder).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SharedDeviceTest, RangeOutsideDeviceSegmentIsRefused) {
  Start();
  const auto segment =
      *MappedSegment::Map(FileDescriptor(dup(server_->store()->shared_device()->fd)));
  const uint64_t data_bytes = segment->layout().data_bytes;
  for (const uint64_t offset : {uint64_t{1}, data_bytes - 4096, data_bytes, ~uint64_t{4095}}) {
    EXPECT_TRUE(absl::IsOutOfRange(segment->Check({offset, 8192, 0}))) << offset;
  }
}

}  // namespace
}  // namespace hearth
