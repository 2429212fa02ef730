#include "services/inference/remote_prefix_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "tests/services/inference/scripted_plan.h"
#include "tests/services/inference/scripted_store.h"
#include "tests/services/rpc/connected_to.h"
#include "tests/services/store/small_layout.h"
#include "tests/support/fake_clock.h"

namespace hearth {
namespace {

constexpr uint32_t kTokens = 40;    // tokens of the prompt
constexpr uint32_t kBoundary = 32;  // boundary that the store has

class RemotePrefixCacheTest : public testing::Test {
 protected:
  RemotePrefixCacheTest() {
    prefix_.token_ids = CountingTokens(kTokens);
    prefix_.tenant = "default";
    store_.fetch = [](grpc::ServerContext*, const v1::FetchRequest&,
                      ScriptedStore::FetchStream* stream) {
      stream->Write(Plan());
      SendSlices(stream);
      return grpc::Status::OK;
    };
    cache_ = std::make_unique<RemotePrefixCache>(ConnectedTo(store_.address()), SmallFingerprint(),
                                                 SmallLayout(), &counters_);
  }

  static v1::FetchResponse Plan() { return ScriptedPlan(kBoundary, kBoundary + 3); }
  static void SendSlices(ScriptedStore::FetchStream* stream,
                         const std::function<void(v1::SliceData*)>& change = nullptr) {
    SendScriptedSlices(kBoundary, stream, change);
  }

  FetchOutcome Fetch(absl::Duration budget = absl::Seconds(60)) {
    return cache_->Fetch(prefix_, 0, kTokens - 1, budget);
  }
  // Fetches, and checks that the result is a miss that is counted only under `outcome`.
  void ExpectMiss(const std::string& outcome) {
    const FetchOutcome fetched = Fetch();
    EXPECT_EQ(fetched.usable_tokens, 0u);
    EXPECT_TRUE(fetched.objects.empty());
    EXPECT_FALSE(fetched.note.empty());
    EXPECT_EQ(counters_.Read().fetches, (std::map<std::string, uint64_t>{{outcome, 1}}))
        << fetched.note;
  }
  PublishRequestSpec Spec() {
    PublishRequestSpec spec;
    spec.prefix = prefix_;
    spec.boundaries = {kBoundary};
    spec.objects = SmallObjects(kBoundary);
    return spec;
  }
  PublishOutcome Publish(const PublishRequestSpec& spec) {
    return cache_->Publish(spec, absl::Seconds(60));
  }

  ScriptedStore store_;
  CacheCounters counters_;
  PrefixRequest prefix_;
  std::unique_ptr<RemotePrefixCache> cache_;
};

TEST_F(RemotePrefixCacheTest, FetchReturnsVerifiedObjects) {
  const FetchOutcome outcome = Fetch();
  EXPECT_EQ(outcome.usable_tokens, kBoundary) << outcome.note;
  EXPECT_EQ(outcome.matched_tokens, kBoundary + 3);
  EXPECT_EQ(outcome.slowest_tier, Tier::kHost);
  const auto expected = SmallObjects(kBoundary);
  ASSERT_EQ(outcome.objects.size(), expected.size());
  uint64_t bytes = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(SameBytes(*outcome.objects[i], *expected[i])) << i;
    bytes += expected[i]->size_bytes;
  }
  EXPECT_EQ(counters_.Read().fetches.at("hit"), 1u);
  EXPECT_EQ(counters_.Read().bytes_fetched, bytes);
}

TEST_F(RemotePrefixCacheTest, MissHasReasonAndMatchedTokens) {
  uint32_t matched = 7;
  int fields = 0;
  store_.fetch = [&](auto*, const v1::FetchRequest& request, auto* stream) {
    fields = request.prefix().fingerprint().fields_size();
    v1::FetchResponse message;
    message.mutable_plan()->set_matched_tokens(matched);
    message.mutable_plan()->set_miss_reason("never stored");
    stream->Write(message);
    return grpc::Status::OK;
  };
  const FetchOutcome outcome = Fetch();
  EXPECT_EQ(outcome.usable_tokens, 0u);
  EXPECT_EQ(outcome.matched_tokens, 7u);
  EXPECT_EQ(outcome.note, "never stored");
  EXPECT_EQ(counters_.Read().fetches.at("miss"), 1u);
  EXPECT_GT(fields, 0) << "the store may not know the model";
  matched = 0;
  Fetch();
  EXPECT_EQ(fields, 0) << "the digest alone will do";
  Fetch();
  EXPECT_GT(fields, 0) << "it may be another store by now";
}

TEST_F(RemotePrefixCacheTest, FingerprintFieldsSentOncePerAdapter) {
  cache_ = std::make_unique<RemotePrefixCache>(ConnectedTo(store_.address()), SmallFingerprint(),
                                               SmallLayout(), &counters_);
  cache_->AddAdapter("dutch", SmallFingerprint());
  bool has_fields = false;
  store_.fetch = [&](auto*, const v1::FetchRequest& request, auto* stream) {
    has_fields = request.prefix().fingerprint().fields_size() > 0;
    v1::FetchResponse message;
    message.mutable_plan()->set_matched_tokens(7);
    stream->Write(message);
    return grpc::Status::OK;
  };
  for (const bool is_new : {true, false}) {
    for (const char* adapter : {"", "dutch"}) {
      prefix_.adapter = adapter;
      Fetch();
      EXPECT_EQ(has_fields, is_new) << "adapter \"" << adapter << "\"";
    }
  }
}

TEST_F(RemotePrefixCacheTest, QuarantineSendsFingerprintFields) {
  store_.quarantine = [](const v1::QuarantineRequest& request, v1::QuarantineResponse* response) {
    EXPECT_GT(request.prefix().fingerprint().fields_size(), 0) << "the store may have restarted";
    response->set_objects(static_cast<uint32_t>(request.objects_size()));
    return grpc::Status::OK;
  };
  EXPECT_TRUE(cache_->Quarantine(prefix_, {{0, 16, LayerGroup::kGlobal}}, absl::Minutes(1)));
}

TEST_F(RemotePrefixCacheTest, PlanWithWrongTokenIdsIsMismatch) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    v1::FetchResponse plan = Plan();
    plan.mutable_plan()->mutable_state()->set_token_ids(30, 1);
    stream->Write(plan);
    SendSlices(stream);
    return grpc::Status::OK;
  };
  ExpectMiss("mismatch");
}

TEST_F(RemotePrefixCacheTest, CorruptSliceIsMiss) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    stream->Write(Plan());
    SendSlices(stream, [](v1::SliceData* slice) { (*slice->mutable_data())[5] ^= 1; });
    return grpc::Status::OK;
  };
  ExpectMiss("corrupt");
}

TEST_F(RemotePrefixCacheTest, TruncatedStreamIsCorrupt) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    stream->Write(Plan());
    return grpc::Status::OK;
  };
  ExpectMiss("corrupt");
}

TEST_F(RemotePrefixCacheTest, StreamWithoutPlanIsCorrupt) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    SendSlices(stream);
    return grpc::Status::OK;
  };
  ExpectMiss("corrupt");
}

TEST_F(RemotePrefixCacheTest, EmptyStreamIsCorrupt) {
  store_.fetch = [](auto*, auto&, auto*) { return grpc::Status::OK; };
  ExpectMiss("corrupt");
}

TEST_F(RemotePrefixCacheTest, SecondPlanIsCorrupt) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    stream->Write(Plan());
    stream->Write(Plan());
    return grpc::Status::OK;
  };
  ExpectMiss("corrupt");
}

TEST_F(RemotePrefixCacheTest, UnknownObjectIsMismatch) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    stream->Write(Plan());
    SendSlices(stream, [](v1::SliceData* slice) { slice->set_object(1u << 31); });
    return grpc::Status::OK;
  };
  ExpectMiss("mismatch");
}

TEST_F(RemotePrefixCacheTest, StoreDataLossCountsCorrupt) {
  store_.fetch = [](auto*, auto&, auto* stream) {
    stream->Write(Plan());
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "quarantined");
  };
  ExpectMiss("corrupt");
}

TEST_F(RemotePrefixCacheTest, SilentStoreOpensBreaker) {
  absl::Notification release;
  store_.fetch = [&](auto*, auto&, auto*) {
    release.WaitForNotification();
    return grpc::Status::OK;
  };
  // The clock stands still, so the breaker stays open even on a slow machine.
  FakeClock clock;
  cache_ = std::make_unique<RemotePrefixCache>(ConnectedTo(store_.address()), SmallFingerprint(),
                                               SmallLayout(), &counters_, true, nullptr, &clock);
  EXPECT_EQ(Fetch(absl::Milliseconds(50)).usable_tokens, 0u);
  EXPECT_EQ(counters_.Read().fetches.at("deadline"), 1u);
  // A fetch that reached the store would block again. The open breaker makes it return at once.
  EXPECT_EQ(Fetch(absl::InfiniteDuration()).usable_tokens, 0u);
  EXPECT_EQ(counters_.Read().fetches.at("unreachable"), 1u);
  release.Notify();
  store_.Stop();   // stop first, because the store's call may still read `release`
  cache_.reset();  // before its clock
}

TEST_F(RemotePrefixCacheTest, DownStoreMissesUntilItReturns) {
  EXPECT_EQ(Fetch().usable_tokens, kBoundary);
  store_.Stop();
  EXPECT_EQ(Fetch(absl::InfiniteDuration()).usable_tokens, 0u);
  EXPECT_EQ(counters_.Read().fetches.at("unreachable"), 1u);
  EXPECT_EQ(Publish(Spec()).published_tokens, 0u);
  EXPECT_EQ(counters_.Read().publishes.at("unreachable"), 1u);
  store_.Start();
  const absl::Time patience = absl::Now() + absl::Minutes(10);
  while (Fetch().usable_tokens != kBoundary) {
    ASSERT_LT(absl::Now(), patience) << "did not recover by itself";
    std::this_thread::yield();
  }
}

TEST_F(RemotePrefixCacheTest, OnlyNeededObjectsAreSent) {
  std::vector<std::pair<uint32_t, uint32_t>> received;
  v1::PublishRequest begin;
  store_.publish = [&](auto*, ScriptedStore::PublishStream* stream) {
    EXPECT_TRUE(stream->Read(&begin));
    v1::PublishResponse response;
    response.mutable_plan()->add_needed(1);
    stream->Write(response);
    v1::PublishRequest message;
    while (stream->Read(&message) && message.has_slice()) {
      received.push_back({message.slice().object(), message.slice().layer()});
    }
    EXPECT_TRUE(message.has_commit());
    response.mutable_ack()->set_durable(v1::DURABILITY_DISK);
    response.mutable_ack()->add_boundaries(kBoundary);
    stream->Write(response);
    return grpc::Status::OK;
  };
  const PublishOutcome outcome = Publish(Spec());
  EXPECT_EQ(outcome.published_tokens, kBoundary) << outcome.note;
  EXPECT_EQ(outcome.durable, Durability::kDisk);
  EXPECT_EQ(outcome.bytes_sent, Spec().objects[1]->size_bytes);
  // Object 1 has the local layers, 0 and 2, of the first chunk.
  EXPECT_EQ(received, (std::vector<std::pair<uint32_t, uint32_t>>{{1, 0}, {1, 2}}));
  EXPECT_GT(begin.begin().prefix().fingerprint().fields_size(), 0);
  EXPECT_EQ(begin.begin().objects_size(), static_cast<int>(Spec().objects.size()));
  EXPECT_EQ(counters_.Read().publishes.at("stored"), 1u);
}

TEST_F(RemotePrefixCacheTest, RefusedPublishesAreCountedByReason) {
  const std::pair<grpc::StatusCode, const char*> cases[] = {
      {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"},
      {grpc::StatusCode::ABORTED, "nondeterminism"},
      {grpc::StatusCode::DATA_LOSS, "corrupt"},
      {grpc::StatusCode::INVALID_ARGUMENT, "refused"}};
  for (const auto& [code, outcome] : cases) {
    store_.publish = [code = code](auto*, ScriptedStore::PublishStream* stream) {
      v1::PublishRequest begin;
      stream->Read(&begin);
      return grpc::Status(code, "no");
    };
    EXPECT_EQ(Publish(Spec()).note, "no");
    EXPECT_EQ(counters_.Read().publishes.at(outcome), 1u);
  }
}

TEST_F(RemotePrefixCacheTest, CancelEndsSilentPublish) {
  absl::Notification asked;
  store_.publish = [&](grpc::ServerContext*, ScriptedStore::PublishStream* stream) {
    v1::PublishRequest message;
    stream->Read(&message);
    asked.Notify();
    while (stream->Read(&message)) {  // reads until the client cancels the call
    }
    return grpc::Status::CANCELLED;
  };
  PublishRequestSpec spec;
  spec.prefix = prefix_;
  spec.boundaries = {kBoundary};
  spec.objects = SmallObjects(kBoundary);
  PublishOutcome outcome;
  std::thread publisher([&] { outcome = cache_->Publish(spec, absl::InfiniteDuration()); });
  asked.WaitForNotification();
  cache_->CancelCalls();
  publisher.join();
  EXPECT_EQ(outcome.published_tokens, 0u);
  EXPECT_FALSE(outcome.note.empty());
}

TEST_F(RemotePrefixCacheTest, ObjectWithoutBytesIsNotSent) {
  store_.publish = [&](auto*, ScriptedStore::PublishStream* stream) {
    v1::PublishRequest begin;
    stream->Read(&begin);
    EXPECT_TRUE(begin.begin().objects(0).absent());
    v1::PublishResponse response;
    response.mutable_plan()->add_needed(0);
    stream->Write(response);
    return grpc::Status::OK;
  };
  PublishRequestSpec spec = Spec();
  auto absent = std::make_shared<KvObject>(*spec.objects[0]);
  absent->bytes = nullptr;
  spec.objects[0] = absent;
  const PublishOutcome outcome = Publish(spec);
  EXPECT_EQ(outcome.published_tokens, 0u);
  EXPECT_TRUE(absl::StrContains(outcome.note, "not offered")) << outcome.note;
}

TEST_F(RemotePrefixCacheTest, UnimplementedLeaseMeansCompute) {
  const LeaseTerms terms{absl::Seconds(60), absl::Seconds(60), 16};
  const LeaseOutcome outcome = cache_->Lease(prefix_, 0, kTokens - 1, terms, absl::Seconds(60));
  EXPECT_EQ(outcome.lease, nullptr);
  EXPECT_EQ(outcome.usable_tokens, 0u);
  EXPECT_EQ(counters_.Read().leases.size(), 1u);
}

TEST_F(RemotePrefixCacheTest, SilentLeaseEndsAtDeadline) {
  bool tells_to_wait = false;
  store_.lease = [&](grpc::ServerContext* context, grpc::ServerWriter<v1::LeaseResponse>* stream) {
    v1::LeaseResponse wait;
    wait.set_turn(v1::LeaseResponse::WAIT);
    if (tells_to_wait) stream->Write(wait);
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::OK;
  };
  int waits = 0;
  const LeaseTerms terms{absl::Hours(1), absl::Milliseconds(20), 16, [&waits] { ++waits; }};
  for (bool wait : {false, true}) {
    tells_to_wait = wait;
    const absl::Time start = absl::Now();
    const auto outcome = cache_->Lease(prefix_, 0, kTokens - 1, terms,
                                       wait ? absl::Hours(1) : absl::Milliseconds(50));
    EXPECT_EQ(outcome.lease, nullptr);
    EXPECT_LT(absl::Now() - start, absl::Minutes(5));
  }
  EXPECT_EQ(counters_.Read().leases.at("deadline"), 2u);
  EXPECT_EQ(waits, 1);
}

TEST_F(RemotePrefixCacheTest, ReleaseEndsTheLease) {
  absl::Notification ended;
  store_.lease = [&](grpc::ServerContext* context, grpc::ServerWriter<v1::LeaseResponse>* stream) {
    v1::LeaseResponse compute;
    compute.set_turn(v1::LeaseResponse::COMPUTE);
    compute.set_matched_tokens(16);
    stream->Write(compute);
    while (!context->IsCancelled()) std::this_thread::yield();
    ended.Notify();
    return grpc::Status::OK;
  };
  const LeaseTerms terms{absl::Seconds(600), absl::Seconds(60), 16};
  LeaseOutcome outcome = cache_->Lease(prefix_, 0, kTokens - 1, terms, absl::Seconds(60));
  ASSERT_NE(outcome.lease, nullptr);
  EXPECT_EQ(outcome.matched_tokens, 16u);
  EXPECT_FALSE(ended.HasBeenNotified());
  outcome.lease.reset();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

TEST_F(RemotePrefixCacheTest, ExplainsThroughTheStore) {
  store_.explain = [](const v1::ExplainRequest& request, v1::ExplainResponse* response) {
    EXPECT_EQ(request.prefix().token_ids_size(), static_cast<int>(kTokens));
    EXPECT_GT(request.prefix().fingerprint().fields_size(), 0);
    response->set_summary("as it is");
    return grpc::Status::OK;
  };
  absl::Notification done;
  std::string summary;
  cache_->Explain(prefix_, absl::InfiniteFuture(), [&](absl::Status status, const auto& response) {
    EXPECT_TRUE(status.ok()) << status;
    summary = response.summary();
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(summary, "as it is");
}

TEST_F(RemotePrefixCacheTest, OutcomeTellsWhatTheStoreCounted) {
  EXPECT_TRUE(Fetch().is_counted);
  EXPECT_EQ(Fetch().counted_held, 0u);  // a hit
  store_.fetch = [](auto*, const v1::FetchRequest&, auto* stream) {
    v1::FetchResponse message;
    message.mutable_plan()->set_miss_reason("not above");
    stream->Write(message);
    return grpc::Status::OK;
  };
  const FetchOutcome miss = cache_->Fetch(prefix_, 16, kTokens - 1, absl::Seconds(60));
  EXPECT_TRUE(miss.is_counted);
  EXPECT_EQ(miss.counted_held, 16u);
  // The store has counted the lookup although the call then fails.
  store_.fetch = [](auto*, const v1::FetchRequest&, auto* stream) {
    v1::FetchResponse message;
    message.mutable_plan()->set_usable_tokens(1u << 30);
    stream->Write(message);
    return grpc::Status::OK;
  };
  EXPECT_TRUE(cache_->Fetch(prefix_, 16, kTokens - 1, absl::Seconds(60)).is_counted);
  store_.Stop();
  const FetchOutcome lost = cache_->Fetch(prefix_, 16, kTokens - 1, absl::Seconds(60));
  EXPECT_FALSE(lost.is_counted);
  EXPECT_EQ(lost.counted_held, 0u);
}

// Words of prompts are sent only while both sides show them.
TEST_F(RemotePrefixCacheTest, FirstWordsNeedBothSides) {
  bool store_shows = false;
  std::string fetched, published;
  store_.report = [&](const v1::ReportRequest&, v1::ReportResponse* response) {
    response->set_shows_prompt_text(store_shows);
    return grpc::Status::OK;
  };
  store_.fetch = [&](auto*, const v1::FetchRequest& request, auto* stream) {
    fetched = request.first_words();
    stream->Write(v1::FetchResponse());
    return grpc::Status::OK;
  };
  store_.publish = [&](auto*, ScriptedStore::PublishStream* stream) {
    v1::PublishRequest request;
    stream->Read(&request);
    published = request.begin().first_words();
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "");
  };
  const auto sent = [&] {
    fetched = published = "(no call)";
    Fetch();
    Publish(Spec());
    EXPECT_EQ(fetched, published);
    return fetched;
  };
  const auto report = [&](bool shows) {
    store_shows = shows;
    return cache_->Report({}, absl::Seconds(60)).value();
  };
  EXPECT_EQ(report(true), true);
  EXPECT_EQ(sent(), "");  // the worker does not show them
  size_t tokens = 0;
  cache_->SendFirstWords([&](const std::vector<int32_t>& token_ids) {
    tokens = token_ids.size();
    return std::string("It was a dark night");
  });
  EXPECT_EQ(sent(), "");  // no report was answered since
  EXPECT_EQ(report(true), true);
  EXPECT_EQ(sent(), "It was a dark night");
  EXPECT_EQ(tokens, RemotePrefixCache::kFirstWordsTokens);
  EXPECT_EQ(report(false), false);
  EXPECT_EQ(sent(), "");
  EXPECT_EQ(report(true), true);
  store_.report = nullptr;  // replaced by an older store
  EXPECT_TRUE(absl::IsUnimplemented(cache_->Report({}, absl::Seconds(60)).status()));
  EXPECT_EQ(sent(), "");
}

}  // namespace
}  // namespace hearth
