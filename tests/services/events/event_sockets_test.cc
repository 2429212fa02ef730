// Subscribers and askers over real sockets, good and bad ones.
#include "services/events/event_sockets.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <thread>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using Parts = std::vector<std::string>;
using Kind = v1::WatchEvent;

constexpr uint64_t kFirst = 1000000;
constexpr int kPatienceMs = 60000;

std::string NumberText(uint64_t number) {
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i)
    text[static_cast<size_t>(i)] = static_cast<char>(number >> (56 - 8 * i));
  return text;
}

class Peer {
 public:
  Peer(void* context, int type, const std::string& address) : socket_(zmq_socket(context, type)) {
    const int linger_ms = 0;
    SetPatience(kPatienceMs);
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    EXPECT_EQ(zmq_connect(socket_, address.c_str()), 0);
  }
  ~Peer() { zmq_close(socket_); }

  void Subscribe(const std::string& topic) {
    zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size());
  }
  void Send(const Parts& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      zmq_send(socket_, parts[i].data(), parts[i].size(), i + 1 < parts.size() ? ZMQ_SNDMORE : 0);
    }
  }
  void SetPatience(int patience_ms) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &patience_ms, sizeof(patience_ms));
  }
  // Empty: nothing came.
  Parts Receive() {
    Parts parts;
    int has_more = 1;
    while (has_more != 0) {
      zmq_msg_t part;
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket_, 0) < 0) return {};
      parts.emplace_back(static_cast<char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
      has_more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    return parts;
  }

 private:
  void* const socket_;
};

class EventSocketsTest : public ::testing::Test {
 protected:
  EventSocketsTest() {
    options_.publish = options_.replay = "tcp://127.0.0.1:*";
    options_.topic = "kv@pod@model";
  }
  ~EventSocketsTest() override {
    Stop();
    zmq_ctx_term(context_);
    close(stop_fd_);
  }

  void Start() {
    auto sockets = EventSockets::Open(options_, &feed_);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    sockets_ = *std::move(sockets);
    thread_ = std::thread([this] { sockets_->Run(stop_fd_); });
  }
  void Stop() {
    if (!thread_.joinable()) return;
    eventfd_write(stop_fd_, 1);
    thread_.join();
    sockets_.reset();
  }
  // Stores a point, which makes one batch: of 16 tokens, or a large one.
  void Store(uint64_t seed, uint32_t chunk_tokens = 16) {
    v1::WatchEvent event;
    event.set_kind(Kind::STORED);
    event.mutable_restore_point()->set_restore_point_id(absl::StrCat("point ", seed));
    event.mutable_restore_point()->set_tokens(chunk_tokens);
    event.mutable_restore_point()->set_fingerprint_digest("f");
    event.mutable_chunks()->set_chunk_tokens(chunk_tokens);
    event.mutable_chunks()->add_chunk_ids(seed);
    for (uint32_t i = 0; i < chunk_tokens; ++i) event.mutable_chunks()->add_token_ids(200000);
    feed_.Take(event, absl::FromUnixMicros(kFirst));
  }
  std::unique_ptr<Peer> Subscriber(const std::string& topic = "") {
    auto peer = std::make_unique<Peer>(context_, ZMQ_SUB, sockets_->publish_address());
    peer->Subscribe(topic);
    return peer;
  }
  std::unique_ptr<Peer> Asker(int type = ZMQ_DEALER) {
    return std::make_unique<Peer>(context_, type, sockets_->replay_address());
  }
  static uint64_t NumberOf(const std::string& text) {
    uint64_t number = 0;
    for (const char byte : text) number = number << 8 | static_cast<uint8_t>(byte);
    return number;
  }
  // The numbers of an answer, up to its end.
  static std::vector<uint64_t> Answer(Peer* asker) {
    std::vector<uint64_t> numbers;
    while (true) {
      const Parts parts = asker->Receive();
      if (parts.size() != 3 || !parts[0].empty()) {
        ADD_FAILURE() << parts.size() << " parts";
        return numbers;
      }
      if (parts[1] == std::string(8, '\xff')) {
        EXPECT_TRUE(parts[2].empty());
        return numbers;
      }
      numbers.push_back(NumberOf(parts[1]));
    }
  }

  EventSocketOptions options_;
  EventFeedOptions feed_options_;
  EventFeed feed_{feed_options_, absl::FromUnixMicros(kFirst)};
  void* const context_ = zmq_ctx_new();
  const int stop_fd_ = eventfd(0, EFD_NONBLOCK);
  std::unique_ptr<EventSockets> sockets_;
  std::thread thread_;
};

TEST_F(EventSocketsTest, ASubscriberGetsTheLastBatchAndThenAllThatFollow) {
  Start();
  const auto subscriber = Subscriber("kv@");
  const Parts last = subscriber->Receive();
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(last[0], "kv@pod@model");
  EXPECT_EQ(last[1], NumberText(kFirst));
  EXPECT_EQ(last[2], *feed_.From(kFirst, 1).at(0).payload);
  for (uint64_t i = 1; i <= 20; ++i) Store(i);
  Parts parts = subscriber->Receive();
  // Published just as it subscribed, the last batch came by both ways.
  if (parts == last) parts = subscriber->Receive();
  for (uint64_t i = 1; i <= 20; ++i) {
    if (i > 1) parts = subscriber->Receive();
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[1], NumberText(kFirst + i));
  }
}

TEST_F(EventSocketsTest, ASubscriberAsksForBatchesThatItMissed) {
  Start();
  for (uint64_t i = 1; i <= 100; ++i) Store(i);
  const auto dealer = Asker();
  dealer->Send({"", NumberText(kFirst + 90)});
  const std::vector<uint64_t> numbers = Answer(dealer.get());
  ASSERT_EQ(numbers.size(), 11u);
  EXPECT_EQ(numbers.front(), kFirst + 90);
  EXPECT_EQ(numbers.back(), kFirst + 100);
  dealer->Send({"", NumberText(kFirst + 101)});
  EXPECT_TRUE(Answer(dealer.get()).empty()) << "nothing is missing";
  dealer->Send({"", NumberText(0)});
  EXPECT_EQ(Answer(dealer.get()).size(), 1u) << "everything anew, in one batch";
}

TEST_F(EventSocketsTest, AnAnswerOfAnySizeArrivesWhole) {
  Start();
  constexpr uint64_t kBatches = 3000;
  for (uint64_t i = 1; i <= kBatches; ++i) Store(i);
  const auto dealer = Asker();
  dealer->Send({"", NumberText(kFirst)});
  const std::vector<uint64_t> numbers = Answer(dealer.get());
  ASSERT_EQ(numbers.size(), kBatches + 1);
  for (uint64_t i = 0; i <= kBatches; ++i) ASSERT_EQ(numbers[i], kFirst + i);
}

TEST_F(EventSocketsTest, GarbageIsNotAnswered) {
  Start();
  Store(1);
  const auto good = Asker();
  for (const Parts& garbage :
       {Parts{"", NumberText(kFirst), "more"}, Parts{"x", NumberText(kFirst)},
        Parts{NumberText(kFirst)}, Parts{"", "short"}, Parts{"", ""},
        Parts{"", NumberText(kFirst), "a", "b", "c", "d"}}) {
    const auto bad = Asker();
    bad->Send({"", NumberText(kFirst + 2)});
    EXPECT_TRUE(Answer(bad.get()).empty()) << "it is connected";
    bad->Send(garbage);
    for (int i = 0; i < 3; ++i) {  // time enough to answer the other, if it were a request
      good->Send({"", NumberText(kFirst)});
      EXPECT_EQ(Answer(good.get()).size(), 2u);
    }
    bad->Send({"", NumberText(kFirst + 1)});
    EXPECT_EQ(Answer(bad.get()), std::vector<uint64_t>{kFirst + 1}) << "of its request alone";
  }
  const auto large = Asker();
  large->Send({"", std::string(2 * EventSockets::kMaxPeerBytes, 'x')});
  good->Send({"", NumberText(kFirst + 1)});
  EXPECT_EQ(Answer(good.get()).size(), 1u);
}

// More than the kernel keeps for a connection whose other end does not read.
constexpr uint64_t kManyLargeBatches = 4000;
constexpr uint32_t kLargeChunk = 1024;  // 5 KiB

TEST_F(EventSocketsTest, AskersThatDoNotReadAreGivenUpForTheNext) {
  options_.patience = absl::Milliseconds(20);
  Start();
  for (uint64_t i = 1; i <= kManyLargeBatches; ++i) Store(i, kLargeChunk);
  std::vector<std::unique_ptr<Peer>> deaf;
  for (size_t i = 0; i < 2 * EventSockets::kMaxReplays; ++i) {
    deaf.push_back(Asker());
    for (int again = 0; again < 3; ++again) deaf.back()->Send({"", NumberText(kFirst)});
  }
  const auto asker = Asker();
  asker->Send({"", NumberText(kFirst + kManyLargeBatches)});
  EXPECT_EQ(Answer(asker.get()).size(), 1u);
}

TEST_F(EventSocketsTest, ASubscriberThatDoesNotReadSeesAGapAndHoldsUpNobody) {
  options_.high_water = 10;
  Start();
  const auto deaf = Subscriber();
  ASSERT_EQ(deaf->Receive().size(), 3u);
  uint64_t stored = 0;
  while (stored < kManyLargeBatches) Store(++stored, kLargeChunk);
  const auto newcomer = Subscriber();
  // Whoever has no room for a moment may miss the last one too, and sees that from the next.
  const auto next_number = [&](Peer* peer) -> uint64_t {
    constexpr int kTries = 6000;
    peer->SetPatience(kPatienceMs / kTries);
    for (int i = 0; i < kTries; ++i) {
      const Parts parts = peer->Receive();
      if (parts.size() == 3) return NumberOf(parts[1]);
      Store(++stored);
    }
    ADD_FAILURE() << "nothing came";
    return UINT64_MAX;
  };
  while (next_number(newcomer.get()) < kFirst + kManyLargeBatches) {
  }
  uint64_t received = 0, number = 0;
  while (number <= kFirst + kManyLargeBatches) {
    number = next_number(deaf.get());
    ++received;
    Store(++stored);  // once it has room again, it gets what is new
  }
  EXPECT_LT(received, number - kFirst);
}

TEST_F(EventSocketsTest, AnAddressThatIsTakenOrNoneIsRefused) {
  Start();
  EventFeed other(feed_options_, absl::FromUnixMicros(kFirst));
  EventSocketOptions options = options_;
  options.publish = sockets_->publish_address();
  const auto taken = EventSockets::Open(options, &other);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kFailedPrecondition);
  options.publish = "localhost 5557";
  EXPECT_EQ(EventSockets::Open(options, &other).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hearth
