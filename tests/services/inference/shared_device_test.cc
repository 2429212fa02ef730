// Fetches from device memory that a store shares: equal bytes, leases, reused memory, killed
// processes, and every fallback to the host's memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/restore_rule.h"
#include "services/inference/object_builder.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/inference/slice_copier.h"
#include "services/store/segment_server.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/child_process.h"
#include "tests/support/fake_device.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

constexpr uint32_t kStored = 37;  // length of the stored prefix: two chunks and a remainder

class SharedDeviceTest : public testing::Test {
 protected:
  // Starts a store that has the prompt's objects on the device.
  void Start(absl::Duration lease = absl::Minutes(10), const std::string& listen = "127.0.0.1:0") {
    StoreOptions options = StoreServer::SmallStore("");
    options.shared_memory = true;
    options.device = std::make_shared<FakeDevice>(16 << 20);
    server_ = std::make_unique<StoreServer>(options, listen, FreshSocket(), lease);
    address_ = server_->address();
    cache_ = Client(FakeDevice::Import);
    PublishRequestSpec spec;
    spec.prefix = Prompt();
    spec.boundaries = {kStored};
    spec.objects = Objects();
    server_->WaitForMemory();
    const PublishOutcome outcome = cache_->Publish(spec, absl::InfiniteDuration());
    ASSERT_EQ(outcome.published_tokens, kStored) << outcome.note;
    FetchFromDevice();
  }
  // The store copies a prefix to the device in the background, after its second fetch. Fetches
  // until the copy is used.
  FetchOutcome FetchFromDevice() {
    const absl::Time patience = absl::Now() + absl::Minutes(2);
    for (;;) {
      FetchOutcome outcome = Fetch(cache_.get());
      if (outcome.slowest_tier == Tier::kGpu) return outcome;
      if (absl::Now() > patience) std::abort();  // nothing came from the device
    }
  }
  static std::string FreshSocket() {
    static int number = 0;
    return absl::StrCat("@hearth-device-test-", getpid(), "-", ++number);
  }
  static PrefixRequest Prompt() { return {CountingTokens(kStored + 3), {kStored}, "default"}; }
  std::unique_ptr<RemotePrefixCache> Client(ImportDevice import) {
    return std::make_unique<RemotePrefixCache>(ConnectedTo(address_), SmallFingerprint(),
                                               SmallLayout(), &counters_, /*shared_memory=*/true,
                                               std::move(import));
  }
  std::vector<std::shared_ptr<const KvObject>> Objects() const {
    std::vector<std::shared_ptr<const KvObject>> objects;
    for (const ObjectId& id : NeededObjects(SmallLayout(), kStored)) {
      objects.push_back(SmallObject(id, salt_));
    }
    return objects;
  }
  // Fetches the prompt, and checks that all returned bytes are right.
  FetchOutcome Fetch(RemotePrefixCache* cache) {
    FetchOutcome outcome = cache->Fetch(Prompt(), 0, kStored, absl::InfiniteDuration());
    ExpectBytes(outcome);
    return outcome;
  }
  void ExpectBytes(const FetchOutcome& outcome) {
    if (outcome.usable_tokens == 0) return;
    const auto expected = Objects();
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
  }

  uint8_t salt_ = 0;  // of the stored bytes
  std::string address_;
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

absl::Status Check(const FetchOutcome& outcome) {
  absl::Status status;
  for (const auto& object : outcome.objects) status.Update(object->check_device_bytes());
  return status;
}

TEST_F(SharedDeviceTest, ObjectsKeepTheirLease) {
  Start();
  FetchOutcome outcome = FetchFromDevice();
  ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  EXPECT_EQ(Check(outcome), absl::OkStatus());
  ExpectBytes(outcome);
  const auto check = outcome.objects.front()->check_device_bytes;
  outcome.objects.clear();
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(absl::IsAborted(check()));
}

// The worst case: the lease expires before the bytes are copied, and the store reuses the memory.
TEST_F(SharedDeviceTest, ReusedMemoryIsFound) {
  Start(absl::Milliseconds(300));
  const FetchOutcome outcome = FetchFromDevice();
  // returns when the lease has ended
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
  ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  EXPECT_TRUE(absl::IsAborted(Check(outcome)));
  EXPECT_GE(counters_.Read().shared_fallbacks.at("reused"), 1u);
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
  EXPECT_EQ(SliceCopier({}).Copy(shared, *segment, &builder).code(),
            absl::StatusCode::kFailedPrecondition);
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

// The segment of a store that shares `device`.
SegmentLayout LayoutOf(FakeDevice* device) {
  SegmentLayout layout;
  layout.id.fill(7);
  layout.data_bytes = device->size_bytes();
  layout.device = device->Export()->handle;
  return layout;
}

// Returns the segment's file, with another version of its header, or without its last bytes.
FileDescriptor FileOf(const SegmentLayout& layout, char version = 3, uint64_t missing_bytes = 0) {
  std::string header = EncodeSegmentHeader(layout);
  header[16] = version;
  FileDescriptor file(memfd_create("test-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(layout.file_bytes() - missing_bytes)), 0);
  EXPECT_EQ(pwrite(file.get(), header.data(), header.size(), 0), ssize_t{kSegmentHeaderBytes});
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return file;
}

// Sends one byte with the descriptors.
void SendAll(int socket, std::vector<int> descriptors) {
  char byte = 'h';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  const size_t bytes = descriptors.size() * sizeof(int);
  msghdr message{nullptr, 0, &data, 1, control, CMSG_SPACE(bytes), 0};
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  *header = {CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  if (descriptors.empty()) message.msg_control = nullptr, message.msg_controllen = 0;
  (void)sendmsg(socket, &message, MSG_NOSIGNAL);  // the client may have refused the offer already
}

// Returns how many descriptors of anonymous memory this process has.
int OpenMemories() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
    count += absl::StrContains(target.string(), "memfd:") ? 1 : 0;
  }
  return count;
}

// Each wrong offer is refused, and leaves no descriptor and no mapping.
TEST(DeviceOffer, WrongOfferIsRefused) {
  FakeDevice device(1 << 20), small(4096);
  const SegmentLayout right = LayoutOf(&device);
  SegmentLayout lies = right, other = right;
  lies.device->bytes = 4096;
  other.device->device.fill(1);
  const int memory = device.Export()->fd, less = small.Export()->fd;
  const FileDescriptor segment = FileOf(right), cut = FileOf(right, 3, 4096),
                       of_old = FileOf(right, 2), of_lies = FileOf(lies), of_other = FileOf(other),
                       event(eventfd(0, EFD_CLOEXEC));
  using Sends = std::vector<std::vector<int>>;  // the descriptors of each message
  const std::vector<std::pair<std::string, Sends>> offers = {
      {"no message", {}},
      {"no descriptor", {{}}},
      {"two descriptors", {{segment.get(), memory}}},
      {"a cut file", {{cut.get()}, {memory}}},
      {"a header of the previous release", {{of_old.get()}}},
      {"less memory than data", {{of_lies.get()}, {memory}}},
      {"no memory", {{segment.get()}}},
      {"no descriptor of the memory", {{segment.get()}, {}}},
      {"two descriptors of memory", {{segment.get()}, {memory, memory}}},
      {"memory of another size", {{segment.get()}, {less}}},
      {"not memory", {{segment.get()}, {event.get()}}},
      {"memory of another device", {{of_other.get()}, {memory}}},
      {"right", {{segment.get()}, {memory}}},
  };
  const int open = OpenMemories();
  for (const auto& [what, sends] : offers) {
    SCOPED_TRACE(what);
    const std::string socket = absl::StrCat("@hearth-offer-test-", getpid());
    const auto listener = *ListenOnUnix(socket);
    std::thread giver([&listener, &sends = sends] {
      pollfd waiting{listener.get(), POLLIN, 0};
      EXPECT_EQ(poll(&waiting, 1, -1), 1);
      const FileDescriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      for (const auto& message : sends) SendAll(connection.get(), message);
    });
    SegmentClient client(FakeDevice::Import);
    bool is_new = false;
    const absl::Status taken = client.MapOffered(socket, right.id, &is_new);
    giver.join();
    EXPECT_EQ(taken.ok(), what == "right") << taken;
    EXPECT_TRUE(is_new);
    if (taken.ok()) continue;
    EXPECT_EQ(client.current(), nullptr);
    EXPECT_EQ(client.MapOffered(socket, right.id, &is_new), taken);
    EXPECT_FALSE(is_new) << "what failed once is not tried again";
  }
  EXPECT_EQ(OpenMemories(), open);
}

// A store of the previous release offers an IPC handle in the header, and sends one descriptor.
TEST_F(SharedDeviceTest, OfferOfPreviousReleaseFallsBackToHost) {
  Start();
  FakeDevice device(1 << 20);
  const FileDescriptor file = FileOf(LayoutOf(&device), 2);
  SharedMemoryOffer offer = server_->service()->offer();
  offer.device_id = LayoutOf(&device).id;
  offer.device_socket = FreshSocket();
  const auto giver = *SegmentServer::Start(offer.device_socket, file.get());
  server_->service()->Offer(offer);
  const auto worker = Client(FakeDevice::Import);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    const FetchOutcome outcome = Fetch(worker.get());
    EXPECT_EQ(outcome.usable_tokens, kStored) << outcome.note;
    EXPECT_EQ(outcome.slowest_tier, Tier::kHost);
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t line = log.find("the store's gpu tier is not used");
  ASSERT_NE(line, std::string::npos) << log;
  EXPECT_TRUE(absl::StrContains(log, "version 2; this program reads 1 and 3")) << log;
  EXPECT_EQ(log.find("gpu tier", line + 40), std::string::npos) << log;
}

// The tests below run this program again, as a store or as a reader, and kill it.
constexpr char kSetting[] = "HEARTH_TEST_STORE";

ChildProcess Child(const std::string& test, const std::string& setting) {
  return ChildProcess({"/proc/self/exe", "--gtest_also_run_disabled_tests",
                       "--gtest_filter=SharedDeviceTest.DISABLED_" + test},
                      absl::StrCat(kSetting, "=", setting));
}

void WaitToBeKilled() {
  std::printf("\nready\n");
  std::fflush(stdout);
  for (;;) pause();
}

TEST_F(SharedDeviceTest, DISABLED_Store) {
  if (std::getenv(kSetting) == nullptr) GTEST_SKIP() << "a part of another test";
  const std::string setting = std::getenv(kSetting);  // the salt, and the address
  salt_ = static_cast<uint8_t>(setting[0]);
  Start(absl::Minutes(10), setting.substr(1));
  WaitToBeKilled();
}

TEST_F(SharedDeviceTest, DISABLED_Reader) {
  if (std::getenv(kSetting) == nullptr) GTEST_SKIP() << "a part of another test";
  address_ = std::getenv(kSetting);
  cache_ = Client(FakeDevice::Import);
  const FetchOutcome held = FetchFromDevice();
  WaitToBeKilled();
}

// Returns when this process maps the device memory of so many stores, each read only.
void WaitUntilMapped(int devices) {
  const absl::Time patience = absl::Now() + absl::Minutes(2);
  for (int mapped = -1; mapped != devices; std::this_thread::yield()) {
    ASSERT_LT(absl::Now(), patience) << mapped;
    mapped = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (!absl::StrContains(line, FakeDevice::kName)) continue;
      EXPECT_TRUE(absl::StrContains(line, " r--s ")) << line;
      ++mapped;
    }
  }
}

// The new store has other bytes for the same prompt.
TEST_F(SharedDeviceTest, KilledStoreIsReplacedByItsSuccessor) {
  const TestFolder folder;
  address_ = "unix:" + folder.File("store");
  ChildProcess first = Child("Store", "1" + address_);
  ASSERT_EQ(first.WaitFor("ready"), "");
  salt_ = '1';
  cache_ = Client(FakeDevice::Import);
  FetchOutcome held = FetchFromDevice();
  first.Kill();
  EXPECT_EQ(Fetch(cache_.get()).usable_tokens, 0u);
  EXPECT_EQ(Check(held), absl::OkStatus());
  ExpectBytes(held);
  WaitUntilMapped(1);
  held.objects.clear();
  WaitUntilMapped(0);
  ChildProcess second = Child("Store", "2" + address_);
  ASSERT_EQ(second.WaitFor("ready"), "");
  salt_ = '2';
  FetchFromDevice();
  WaitUntilMapped(1);
}

TEST_F(SharedDeviceTest, KilledReaderReleasesItsLease) {
  Start();
  const auto check = FetchFromDevice().objects.front()->check_device_bytes;
  ChildProcess reader = Child("Reader", address_);
  ASSERT_EQ(reader.WaitFor("ready"), "");
  ASSERT_TRUE(server_->store()->DropAll("default", true).ok());
  EXPECT_EQ(check(), absl::OkStatus()) << "the other process reads the range";
  reader.Kill();
  EXPECT_TRUE(server_->admission()->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(absl::IsAborted(check())) << "the range is free";
}

}  // namespace
}  // namespace hearth
