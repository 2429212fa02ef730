// Fetches through RAM that a store shares: equal bytes, leases, reused memory, and fallbacks to the
// wire.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cache_store/memory/host_arena.h"
#include "proto/kv_layout.h"
#include "proto/slice_hasher.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/proto_conversion.h"
#include "services/store/segment_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint32_t kShared = 32;

std::string FreshSocket() {
  static int number = 0;
  return absl::StrCat("@hearth-test-", getpid(), "-", ++number);
}

std::vector<std::shared_ptr<const KvObject>> WideObjects() {
  std::vector<std::shared_ptr<const KvObject>> objects;
  for (const ObjectId& id : NeededObjects(WideLayout(), kShared)) {
    objects.push_back(ObjectOf(WideLayout(), id));
  }
  return objects;
}

PrefixRequest SharedPrompt(uint32_t tokens = kShared + 8) {
  return {CountingTokens(tokens), {}, "default"};
}

// A store that shares its RAM, and one client.
class SharedMemoryTest : public testing::Test {
 protected:
  void Start(StoreOptions options = StoreServer::SmallStore(""),
             absl::Duration lease = absl::Minutes(10)) {
    cache_ = nullptr;
    server_ = nullptr;
    options.shared_memory = true;
    server_ = std::make_unique<StoreServer>(options, "127.0.0.1:0", FreshSocket(), lease);
    cache_ = NewClient();
  }
  std::unique_ptr<RemotePrefixCache> NewClient() {
    return std::make_unique<RemotePrefixCache>(ConnectedTo(server_->address()), WideFingerprint(),
                                               WideLayout(), &counters_);
  }
  // Publishes the prompt, when the shared memory is resident: the arena makes it so in the
  // background.
  void Publish() {
    PublishRequestSpec spec;
    spec.prefix = SharedPrompt();
    spec.boundaries = {kShared};
    spec.objects = WideObjects();
    server_->WaitForMemory();
    const PublishOutcome outcome = cache_->Publish(spec, absl::InfiniteDuration());
    ASSERT_EQ(outcome.published_tokens, kShared) << outcome.note;
  }
  void ExpectHit(RemotePrefixCache* cache) {
    const FetchOutcome outcome = cache->Fetch(SharedPrompt(), 0, kShared, absl::InfiniteDuration());
    ASSERT_EQ(outcome.usable_tokens, kShared) << outcome.note;
    const auto expected = WideObjects();
    ASSERT_EQ(outcome.objects.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(SameBytes(*outcome.objects[i], *expected[i])) << i;
    }
  }
  void FlipABitInRam() {
    auto session = *server_->store()->Fetch(
        {WideFingerprint().digest(), "default", SharedPrompt().token_ids, {}, ""}, 0, kShared);
    const SliceView slice = *session->ReadSlice(0, 1);
    *const_cast<std::byte*>(slice.bytes.data()) ^= std::byte{1};
  }
  uint64_t WholeBytes() {
    uint64_t bytes = 0;
    for (const auto& object : WideObjects()) bytes += object->size_bytes;
    return bytes;
  }
  // A fetch of shared memory that has its plan and stays open: it holds the lease.
  struct Lease {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::FetchResponse>> stream;
    v1::FetchPlan plan;
  };
  std::unique_ptr<Lease> TakeLease() {
    auto lease = TryLease();
    EXPECT_GT(lease->plan.shared().objects_size(), 0);
    return lease;
  }
  // Like TakeLease, but the plan is empty if the call failed.
  std::unique_ptr<Lease> TryLease() {
    auto lease = std::make_unique<Lease>();
    v1::FetchRequest request;
    DigestToProto(WideFingerprint().digest(), request.mutable_prefix()->mutable_fingerprint());
    for (const uint32_t id : SharedPrompt().token_ids) request.mutable_prefix()->add_token_ids(id);
    const SegmentId id = server_->store()->shared_memory()->layout.id;
    request.set_segment_id(id.data(), id.size());
    lease->stream = server_->stub()->Fetch(&lease->context, request);
    v1::FetchResponse message;
    if (lease->stream->Read(&message)) lease->plan = message.plan();
    return lease;
  }
  std::shared_ptr<const MappedSegment> Map() {
    auto segment = MappedSegment::Map(FileDescriptor(dup(server_->store()->shared_memory()->fd)));
    EXPECT_TRUE(segment.ok()) << segment.status();
    return *segment;
  }
  // Copies the first slice that the plan shares, directly from the shared memory.
  absl::Status CopyFirst(const v1::FetchPlan& plan) {
    std::vector<std::byte> to(WideLayout().SliceBytes(16));
    SliceHasher hasher;
    return Map()->Copy({plan.shared().offsets(0), to.size(), plan.shared().generations(0)},
                       to.data(), &hasher);
  }

  CacheCounters counters_;
  const TestFolder folder_;  // destroyed after the server, which writes into it
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<RemotePrefixCache> cache_;
};

TEST_F(SharedMemoryTest, SecondFetchUsesSharedMemory) {
  Start();
  Publish();
  ExpectHit(cache_.get());  // over the wire; this fetch maps the segment
  EXPECT_EQ(counters_.Read().bytes_shared, 0u);
  ExpectHit(cache_.get());
  EXPECT_EQ(counters_.Read().bytes_shared, WholeBytes());
  EXPECT_EQ(counters_.Read().bytes_fetched, 2 * WholeBytes());
  EXPECT_TRUE(counters_.Read().shared_fallbacks.empty());
  EXPECT_EQ(server_->store()->Stats().counters.at("bytes_shared"), WholeBytes());
}

TEST_F(SharedMemoryTest, FirstFetchAfterMapMemoryUsesSharedMemory) {
  Start();
  Publish();
  cache_->MapMemory(absl::InfiniteDuration());
  const auto asked = server_->store()->Stats().counters;
  for (const char* name : {"fetches", "hits", "lookup_tokens"}) EXPECT_EQ(asked.at(name), 0u);
  ExpectHit(cache_.get());
  EXPECT_EQ(counters_.Read().bytes_shared, WholeBytes());
  EXPECT_TRUE(counters_.Read().shared_fallbacks.empty());
  EXPECT_EQ(counters_.Read().fetches.at("hit"), 1u);
  EXPECT_EQ(counters_.Read().fetches.count("miss"), 0u);
}

TEST_F(SharedMemoryTest, FetchedBytesStayValidAfterDrop) {
  Start();
  Publish();
  ExpectHit(cache_.get());
  const FetchOutcome outcome = cache_->Fetch(SharedPrompt(), 0, kShared, absl::InfiniteDuration());
  ASSERT_EQ(outcome.usable_tokens, kShared) << outcome.note;
  EXPECT_EQ(counters_.Read().bytes_shared, WholeBytes());
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
  ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  const auto expected = WideObjects();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(SameBytes(*outcome.objects[i], *expected[i])) << i;
  }
}

TEST_F(SharedMemoryTest, PointReadFromDiskIsShared) {
  Start(StoreServer::SmallStore(folder_.path()));
  Publish();
  Start(StoreServer::SmallStore(folder_.path()));
  server_->WaitForMemory();
  ExpectHit(cache_.get());
  ASSERT_TRUE(server_->store()->Flush(absl::InfiniteFuture()).ok());
  ExpectHit(cache_.get());
  EXPECT_EQ(counters_.Read().bytes_shared, WholeBytes());
}

TEST_F(SharedMemoryTest, DisabledSharedMemoryUsesWire) {
  Start();
  Publish();
  RemotePrefixCache plain(ConnectedTo(server_->address()), WideFingerprint(), WideLayout(),
                          &counters_, /*shared_memory=*/false);
  ExpectHit(&plain);
  ExpectHit(&plain);
  EXPECT_EQ(counters_.Read().bytes_shared, 0u);
}

TEST_F(SharedMemoryTest, LeaseKeepsBytesUntilCancelled) {
  Start();
  Publish();
  auto lease = TakeLease();
  ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  EXPECT_TRUE(CopyFirst(lease->plan).ok());
  lease->context.TryCancel();
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(absl::IsAborted(CopyFirst(lease->plan)));
}

TEST_F(SharedMemoryTest, UnreleasedLeaseExpires) {
  // On a busy machine the lease may expire before the plan is sent. Then the call fails, and the
  // test tries a longer lease.
  std::unique_ptr<Lease> lease;
  grpc::Status status;
  for (absl::Duration time = absl::Milliseconds(200); time < absl::Minutes(1); time *= 2) {
    lease = nullptr;
    Start(StoreServer::SmallStore(""), time);
    Publish();
    lease = TryLease();
    v1::FetchResponse message;
    EXPECT_FALSE(lease->stream->Read(&message));
    status = lease->stream->Finish();
    if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) break;
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_GT(lease->plan.shared().objects_size(), 0);
  ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  EXPECT_TRUE(absl::IsAborted(CopyFirst(lease->plan)));
}

// The worst case: the store reuses the memory during the copy.
TEST_F(SharedMemoryTest, ReusedMemoryIsNotReturned) {
  ArenaOptions options;
  options.capacity_bytes = options.ahead_bytes = options.slab_bytes = 2 << 20;
  options.shared = true;
  const auto arena = *HostArena::Create(options);
  arena->WaitUntilAhead();
  const auto segment = *MappedSegment::Map(FileDescriptor(dup(arena->segment_fd())));
  const size_t bytes = 1 << 20;
  auto memory = arena->Allocate(bytes);
  std::memset(memory.get(), 1, bytes);
  const SegmentRange range = *arena->RangeOf(memory.get(), bytes);
  std::vector<std::byte> copy(bytes);
  SliceHasher hasher;
  EXPECT_TRUE(segment->Copy(range, copy.data(), &hasher).ok());
  EXPECT_EQ(copy[bytes - 1], std::byte{1});
  EXPECT_EQ(hasher.digest(), SliceDigest(copy.data(), bytes));
  const auto reuse = [&] {
    memory = nullptr;
    memory = arena->Allocate(bytes);
    ASSERT_EQ(arena->RangeOf(memory.get(), bytes)->offset, range.offset);
    std::memset(memory.get(), 2, bytes);
  };
  EXPECT_TRUE(absl::IsAborted(segment->Copy(range, copy.data(), &hasher, reuse)));
  EXPECT_TRUE(absl::IsAborted(segment->Copy(range, copy.data(), &hasher)));
  // The memory was freed and not yet reused. It does not count as the promised bytes either.
  const SegmentRange second = *arena->RangeOf(memory.get(), bytes);
  EXPECT_TRUE(segment->Copy(second, copy.data(), &hasher).ok());
  EXPECT_TRUE(
      absl::IsAborted(segment->Copy(second, copy.data(), &hasher, [&] { memory = nullptr; })));
}

TEST_F(SharedMemoryTest, RangeOutsideSegmentIsRefused) {
  Start();
  const auto segment = Map();
  std::vector<std::byte> to(8192);
  const uint64_t data_bytes = server_->store()->shared_memory()->layout.data_bytes;
  for (const uint64_t offset : {uint64_t{1}, data_bytes - 4096, data_bytes, ~uint64_t{4095}}) {
    SliceHasher hasher;
    EXPECT_TRUE(absl::IsOutOfRange(segment->Copy({offset, 8192, 0}, to.data(), &hasher))) << offset;
  }
}

TEST_F(SharedMemoryTest, CorruptSharedBytesAreQuarantined) {
  Start();
  Publish();
  ExpectHit(cache_.get());
  FlipABitInRam();
  const FetchOutcome outcome = cache_->Fetch(SharedPrompt(), 0, kShared, absl::InfiniteDuration());
  EXPECT_EQ(outcome.usable_tokens, 0u);
  EXPECT_EQ(counters_.Read().shared_fallbacks.at("corrupt"), 1u);
  EXPECT_EQ(server_->store()->Stats().counters.at("quarantined_objects"), 1u);
}

TEST_F(SharedMemoryTest, CorruptRamIsQuarantined) {
  Start();
  Publish();
  RemotePrefixCache plain(ConnectedTo(server_->address()), WideFingerprint(), WideLayout(),
                          &counters_, /*shared_memory=*/false);
  ExpectHit(&plain);
  FlipABitInRam();
  const FetchOutcome outcome = plain.Fetch(SharedPrompt(), 0, kShared, absl::InfiniteDuration());
  EXPECT_EQ(outcome.usable_tokens, 0u);
  EXPECT_EQ(counters_.Read().fetches.at("corrupt"), 1u);
  EXPECT_EQ(server_->store()->Stats().counters.at("quarantined_objects"), 1u);
}

TEST_F(SharedMemoryTest, CorruptRamFallsBackToDisk) {
  Start(StoreServer::SmallStore(folder_.path()));
  Publish();
  ExpectHit(cache_.get());
  FlipABitInRam();
  ExpectHit(cache_.get());
  EXPECT_EQ(server_->store()->Stats().counters.at("refetches"), 1u);
  EXPECT_EQ(server_->store()->Stats().counters.at("host_corrupt_objects"), 1u);
  EXPECT_EQ(server_->store()->Stats().counters.at("quarantined_objects"), 0u);
}

TEST_F(SharedMemoryTest, LostStoreIsUnmapped) {
  Start();
  SegmentClient client;
  const SharedMemory memory = *server_->store()->shared_memory();
  const std::string socket = FreshSocket();
  auto giver = *SegmentServer::Start(socket, memory.fd);
  ASSERT_TRUE(client.MapOffered(socket, memory.layout.id).ok());
  ASSERT_NE(client.current(), nullptr);
  giver = nullptr;
  while (client.current() != nullptr) std::this_thread::yield();
  // When the server is back, the memory is mapped and read again.
  giver = *SegmentServer::Start(socket, memory.fd);
  EXPECT_TRUE(client.MapOffered(socket, memory.layout.id).ok());
  EXPECT_NE(client.current(), nullptr);
}

TEST_F(SharedMemoryTest, SocketOfOtherStoreIsRefused) {
  Start();
  const SharedMemory memory = *server_->store()->shared_memory();
  const std::string socket = FreshSocket();
  const auto giver = *SegmentServer::Start(socket, memory.fd);
  SegmentId other = memory.layout.id;
  other[0] ^= 1;
  SegmentClient client;
  EXPECT_TRUE(absl::IsUnavailable(client.MapOffered(socket, other)));
  EXPECT_TRUE(absl::IsUnavailable(client.MapOffered("@nobody-listens-here", memory.layout.id)));
  EXPECT_EQ(client.current(), nullptr);
  EXPECT_TRUE(absl::IsUnavailable(SegmentServer::Start(socket, memory.fd).status()));
}

TEST_F(SharedMemoryTest, OtherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Start();
  const std::string socket = FreshSocket();
  const auto giver = *SegmentServer::Start(socket, server_->store()->shared_memory()->fd);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(3);
    const auto connection = ConnectToUnix(socket);
    if (!connection.ok()) _exit(2);
    _exit(ReceiveDescriptor(connection->get()).ok() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SharedMemoryTest, StaleSocketIsReplaced) {
  const std::string path = folder_.File("segment.socket");
  const pid_t child = fork();
  if (child == 0) _exit(ListenOnUnix(path).ok() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  ASSERT_TRUE(std::filesystem::exists(path));
  Start();
  const int fd = server_->store()->shared_memory()->fd;
  auto giver = SegmentServer::Start(path, fd);
  ASSERT_TRUE(giver.ok()) << giver.status();
  *giver = nullptr;
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace hearth
