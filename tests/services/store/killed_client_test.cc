// If a client process is killed, the store releases everything that the client held.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/services/store/store_client.h"
#include "tests/services/store/store_server.h"
#include "tests/support/child_process.h"

namespace hearth {
namespace {

// the test fails after this time; normally it needs milliseconds
constexpr uint32_t kLongMs = 600000;

// Publishes the restore point that a client with `hold` asks for.
void PublishWide(TieredStore* store) {
  const Manifest manifest = TinyManifest();
  PublishSpec spec;
  spec.fingerprint = ClientModel(true);
  spec.tenant = "default";
  spec.token_ids = manifest.token_ids;
  spec.cuts = manifest.cuts;
  spec.boundaries = {manifest.token_count};
  const KvLayout layout = spec.fingerprint.Layout().value();
  const auto slice_of = [&](const ObjectId& id) {
    return TinySlice(0, layout.SliceBytes(id.tokens));
  };
  for (const ObjectId& id : NeededObjects(layout, manifest.token_count)) {
    const std::string slice = slice_of(id);
    const uint64_t digest = SliceDigest(slice.data(), slice.size());
    const size_t slices = layout.LayersOf(id.group).size();
    spec.objects.push_back({id, std::vector<uint64_t>(slices, digest), false});
  }
  const auto publish = store->Publish(spec).value();
  for (uint32_t i = 0; i < spec.objects.size(); ++i) {
    const std::string slice = slice_of(spec.objects[i].id);
    for (const uint32_t layer : layout.LayersOf(spec.objects[i].id.group)) {
      const std::shared_ptr<std::byte> place = publish->AllocateSlice(slice.size()).value();
      std::memcpy(place.get(), slice.data(), slice.size());
      ASSERT_TRUE(publish->PutSlice(i, layer, {place, {place.get(), slice.size()}}).ok());
    }
  }
  ASSERT_TRUE(publish->Commit().ok());
}

TEST(KilledClient, SharedMemoryLeaseIsReleased) {
  StoreOptions options = StoreServer::SmallStore("");
  options.shared_memory = true;
  StoreServer server(options, "127.0.0.1:0", "@hearth-killed-client-" + std::to_string(getpid()));
  server.WaitForMemory();
  PublishWide(server.store());
  ChildProcess client({HEARTH_STORE_CLIENT, server.address(), "hold"});
  ASSERT_EQ(client.WaitFor("held"), "");
  // The server may notice later that the client's first fetch has ended.
  while (server.admission()->running() > 1) std::this_thread::yield();
  EXPECT_EQ(server.admission()->running(), 1) << "it holds for ten minutes, unless";
  client.Kill();
  EXPECT_TRUE(server.admission()->WaitIdle(absl::Now() + absl::Minutes(5)));
  // The objects are free: the restore point can be dropped.
  ASSERT_TRUE(server.store()->DropAll("default", true).ok());
  EXPECT_EQ(server.store()->Stats().tiers.at(0).bytes, 0u);
  EXPECT_EQ(server.store()->Stats().objects, 0u);
}

TEST(KilledClient, ComputeLeaseIsReleased) {
  StoreServer server(StoreServer::SmallStore(""));
  ChildProcess client({HEARTH_STORE_CLIENT, server.address(), "compute"});
  ASSERT_EQ(client.WaitFor("held"), "");
  v1::LeaseRequest request;
  *request.mutable_prefix() = ClientPrefix(ClientModel(false));
  request.set_lease_ms(kLongMs);
  request.set_wait_ms(kLongMs);
  grpc::ClientContext context;
  const auto reader = server.stub()->Lease(&context, request);
  v1::LeaseResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_EQ(response.turn(), v1::LeaseResponse::WAIT);
  client.Kill();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.turn(), v1::LeaseResponse::COMPUTE);
  EXPECT_EQ(server.store()->Stats().counters.at("lease_takeovers"), 1u);
  context.TryCancel();
  reader->Finish();
}

}  // namespace
}  // namespace hearth
