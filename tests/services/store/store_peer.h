// Peer: a caller of a store. It returns the store's answers as text, so that a test can compare
// them between callers, prompts and stores.
//
// The text has no times and nothing else that differs between equal stores. Thread safety: use each
// Peer on one thread.
#ifndef HEARTH_TESTS_SERVICES_STORE_STORE_PEER_H_
#define HEARTH_TESTS_SERVICES_STORE_STORE_PEER_H_

#include <gtest/gtest.h>

#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/client_access.h"
#include "services/rpc/proto_conversion.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/services/store/store_server.h"
#include "tests/support/test_certificates.h"

namespace hearth {

inline constexpr uint32_t kBoundary = 40;
inline constexpr uint32_t kPrompt = 64;
inline constexpr uint32_t kFirstToken = 5;  // first token of CountingTokens

// `first`: the first token of the prompt. Prompts with another first token share no prefix.
inline v1::Prefix PrefixOf(uint32_t tokens, const std::string& weights = "a",
                           uint32_t first = kFirstToken) {
  v1::Prefix prefix;
  ToProto(SmallFingerprint(weights), prefix.mutable_fingerprint());
  for (uint32_t id : CountingTokens(tokens)) prefix.add_token_ids(id);
  prefix.set_token_ids(0, first);
  if (tokens > kBoundary) prefix.add_cuts(kBoundary);
  return prefix;
}

// A worker's report, with one model.
inline v1::ReportRequest KitReport() {
  v1::ReportRequest report;
  report.set_instance("0123456789abcdef");
  report.set_sequence(1);
  report.set_name("host:7070");
  v1::ServedModel* const model = report.add_models();
  model->set_name("small model");
  model->set_fingerprint_digest(std::string(DigestBytes(SmallFingerprint("a").digest())));
  return report;
}

// One caller of the store.
class Peer {
 public:
  Peer(StoreServer& server, const ClientAccess& access)
      : admission_(server.admission()),
        stub_(v1::CacheStore::NewStub(PatientChannel(server.address(), access))) {}

  std::string Fetch(const v1::FetchRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Fetch(&context, request);
    return ReadAll<v1::FetchResponse>(reader.get(), context);
  }
  // Asks for a lease. Returns the answers up to the first answer that is not WAIT. If that answer
  // grants the lease, ends the call and waits until the store has noticed the end: otherwise the
  // next caller would get WAIT. REQUIRES: the store has no other open call.
  std::string Lease(const v1::LeaseRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Lease(&context, request);
    std::string told;
    v1::LeaseResponse response;
    while (reader->Read(&response)) {
      told += Plain(response.DebugString());
      if (response.turn() != v1::LeaseResponse::COMPUTE) continue;
      context.TryCancel();
      reader->Finish();
      EXPECT_TRUE(admission_->WaitIdle(absl::Now() + absl::Minutes(10)));
      return told + "a lease\n";
    }
    return told + Ended(reader->Finish(), context);
  }
  std::string Publish(const v1::Prefix& prefix, uint8_t salt, const std::string& words = "") {
    grpc::ClientContext context;
    const auto call = stub_->Publish(&context);
    v1::PublishRequest message;
    v1::PublishBegin* begin = message.mutable_begin();
    *begin->mutable_prefix() = prefix;
    begin->set_first_words(words);
    begin->add_boundaries(kBoundary);
    std::vector<std::shared_ptr<const KvObject>> objects;
    for (const auto& object : SmallObjects(kBoundary)) {
      objects.push_back(ObjectOf(SmallLayout(), object->id, salt));
      v1::ObjectRef* ref = begin->add_objects();
      ToProto(object->id, ref);
      for (uint64_t digest : objects.back()->slice_digests) ref->add_slice_digests(digest);
    }
    std::string told;
    v1::PublishResponse response;
    call->Write(message);
    if (call->Read(&response)) {
      told += response.DebugString();
      for (uint32_t index : response.plan().needed()) {
        const std::byte* from = objects[index]->bytes.get();
        const size_t bytes = SmallLayout().SliceBytes(objects[index]->id.tokens);
        for (uint32_t layer : SmallLayout().LayersOf(objects[index]->id.group)) {
          message.mutable_slice()->set_object(index);
          message.mutable_slice()->set_layer(layer);
          message.mutable_slice()->set_data(from, bytes);
          call->Write(message);
          from += bytes;
        }
      }
      message.mutable_commit();
      call->Write(message);
      if (call->Read(&response)) told += response.DebugString();
    }
    return told + Ended(call->Finish(), context);
  }
  template <typename Request, typename Response>
  std::string Unary(grpc::Status (v1::CacheStore::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                    const Request& request) {
    grpc::ClientContext context;
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    return Plain(response.DebugString()) + Ended(status, context);
  }
  std::string List(const std::string& tenant = "") {
    grpc::ClientContext context;
    v1::ListRequest request;
    request.set_tenant(tenant);
    const auto reader = stub_->List(&context, request);
    return ReadAll<v1::RestorePointInfo>(reader.get(), context);
  }
  std::string FirstId() {
    grpc::ClientContext context;
    const auto reader = stub_->List(&context, {});
    v1::RestorePointInfo point;
    reader->Read(&point);
    context.TryCancel();
    return point.restore_point_id();
  }
  // Watches until the end of the snapshot. Returns the events.
  std::string Watch(const std::string& tenant = "", bool with_chunks = false) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_tenant(tenant);
    request.set_with_chunks(with_chunks);
    const auto reader = stub_->Watch(&context, request);
    std::string told;
    v1::WatchEvent event;
    while (reader->Read(&event)) {
      told += Plain(event.DebugString());
      if (event.kind() != v1::WatchEvent::SNAPSHOT_END) continue;
      context.TryCancel();
      return told;
    }
    return told + Ended(reader->Finish(), context);
  }
  // Makes every call about a prompt and a restore point, except Publish, which would change the
  // store. Returns all answers.
  std::string AskEverything(const std::string& id, const std::string& tenant = "",
                            uint32_t first = kFirstToken) {
    v1::FetchRequest fetch, by_id;
    *fetch.mutable_prefix() = PrefixOf(kPrompt, "a", first);
    fetch.mutable_prefix()->set_tenant(tenant);
    by_id.set_restore_point_id(id);
    by_id.set_tenant(tenant);
    v1::ExplainRequest explain, other;
    *explain.mutable_prefix() = fetch.prefix();
    *other.mutable_prefix() = PrefixOf(kPrompt, "other weights", first);
    other.mutable_prefix()->set_tenant(tenant);
    v1::LeaseRequest lease;
    *lease.mutable_prefix() = fetch.prefix();
    lease.set_lease_ms(60000);
    v1::PinRequest pin;
    pin.set_restore_point_id(id);
    pin.set_tenant(tenant);
    v1::StatsRequest stats;
    stats.set_tenant(tenant);
    v1::DropRequest drop;
    drop.set_restore_point_id(id);
    drop.set_force(true);
    drop.set_tenant(tenant);
    v1::QuarantineRequest quarantine;
    *quarantine.mutable_prefix() = fetch.prefix();
    ToProto(ObjectId{0, 16, LayerGroup::kGlobal}, quarantine.add_objects());
    const v1::ReportRequest report = KitReport();
    return absl::StrCat("fetch: ", Fetch(fetch), "by id: ", Fetch(by_id), "lease: ", Lease(lease),
                        "explain: ", Unary(&v1::CacheStore::Stub::Explain, explain),
                        "other: ", Unary(&v1::CacheStore::Stub::Explain, other),
                        "pin: ", Unary(&v1::CacheStore::Stub::Pin, pin),
                        "unpin: ", Unary(&v1::CacheStore::Stub::Unpin, pin), "list: ", List(tenant),
                        "watch: ", Watch(tenant), "tokens: ", Watch(tenant, true),
                        "stats: ", Unary(&v1::CacheStore::Stub::Stats, stats),
                        "quarantine: ", Unary(&v1::CacheStore::Stub::Quarantine, quarantine),
                        "report: ", Unary(&v1::CacheStore::Stub::Report, report),
                        "drop: ", Unary(&v1::CacheStore::Stub::Drop, drop));
  }
  std::string DropAll() {
    v1::DropRequest drop;
    drop.set_all(true);
    drop.set_force(true);
    return Unary(&v1::CacheStore::Stub::Drop, drop);
  }
  std::string Pin(const std::string& id) {
    v1::PinRequest pin;
    pin.set_restore_point_id(id);
    return Unary(&v1::CacheStore::Stub::Pin, pin);
  }

 private:
  static std::string Plain(const std::string& text) {
    static const std::regex kTimes("(age_s|uptime_s|incarnation|removed_s|deadline_ms): [^\n]*");
    return std::regex_replace(text, kTimes, "");
  }
  static std::string Ended(const grpc::Status& status, const grpc::ClientContext& context) {
    std::string told = absl::StrCat("status ", status.error_code(), " ", status.error_message());
    for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
      absl::StrAppend(&told, " ", std::string(key.data(), key.size()), "=",
                      std::string(value.data(), value.size()));
    }
    return told + "\n";
  }
  template <typename Message, typename Reader>
  static std::string ReadAll(Reader* reader, const grpc::ClientContext& context) {
    std::string told;
    Message message;
    while (reader->Read(&message)) told += Plain(message.DebugString());
    return told + Ended(reader->Finish(), context);
  }

  Admission* const admission_;
  const std::unique_ptr<v1::CacheStore::Stub> stub_;
};

// Identities with tokens: the tenants a, b and writer, a worker, and an administrator.
class TenantsFixture : public testing::Test {
 protected:
  // `before`: text in the identities file before the list of identities. `more_of_writer`: more
  // fields of the entry "writer".
  explicit TenantsFixture(const std::string& before = "", const std::string& more_of_writer = "") {
    std::string entries;
    for (const auto& [name, role] : std::vector<std::pair<std::string, std::string>>{
             {"a", "tenant"}, {"b", "tenant"}, {"worker", "worker"}, {"root", "admin"}}) {
      absl::StrAppend(&entries, Entry(name, role), ",");
    }
    // May write the public namespace, if there is one; otherwise it is an ordinary tenant.
    const std::string writer = Entry("writer", "tenant", more_of_writer);
    access_.identities_file = folder_.Write(
        "identities.json", absl::StrCat("{", before, R"("identities":[)", entries, writer, "]}"));
    options_ = StoreServer::SmallStore("");
    // Equal secrets, so that a restore point of tenant a has the same id in all stores of a test.
    options_.secret_file = folder_.Write("secret", std::string(64, 'a'));
  }

  static std::string Entry(const std::string& name, const std::string& role,
                           const std::string& more = "") {
    return absl::StrCat(R"({"name":")", name, R"(","role":")", role, R"(","token_sha256":")",
                        DigestHex(Sha256("token-" + name)), "\"", more, "}");
  }
  ClientAccess As(const std::string& name) {
    ClientAccess access;
    access.token_file = folder_.Write("token-" + name, "token-" + name);
    return access;
  }

  SecretFolder folder_;
  AccessFlags access_;
  StoreOptions options_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_STORE_STORE_PEER_H_
